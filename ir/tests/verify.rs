//! The verifier: what it accepts, and a broken graph for each check, as text.

use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, NodeId, StateId};
use shardc_ir::mesh::AxisId;
use shardc_ir::ops::Op;
use shardc_ir::ops::layout::Concat;
use shardc_ir::ops::samples::samples;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::sharding::{Sharding, Split, with_split};
use shardc_ir::text::parse;
use shardc_ir::types::Type;
use shardc_ir::verify::{Site, report, verify};

/// A training step by two-way data and tensor parallelism over two micro-batches.
const GOOD: &str = r#"
  state "w1" : f32[4, 16]{-, tp}  parameter init=model
  state "w2" : f32[16, 4]{tp, -}  parameter init=model
  %x   = input "x" : f32[8, 4]{(time,dp), -}
  %w1  = state "w1" : f32[4, 16]{-, tp}
  %w2  = state "w2" : f32[16, 4]{tp, -}
  %h   = contract "bk,kn->bn" %x, %w1 : f32[8, 16]{(time,dp), tp}
  %a   = relu %h : f32[8, 16]{(time,dp), tp}
  %p   = contract "bn,nm->bm" %a, %w2 : f32[8, 4]{(time,dp), -} partial(sum: tp)
  %n   = neg %p : f32[8, 4]{(time,dp), -} partial(sum: tp)
  %y   = all_reduce axes=[tp] kind=sum %n : f32[8, 4]{(time,dp), -}
  %g   = contract "bn,bm->nm" %a, %y : f32[16, 4]{tp, -} partial(sum: dp time)
  %t   = accumulate kind=sum %g : f32[16, 4]{tp, -} partial(sum: dp)
  %r   = all_reduce axes=[dp] kind=sum %t : f32[16, 4]{tp, -}
  %lr  = constant 0.1 : f32[]
  %u   = sgd momentum=0.0 nesterov=false weight_decay=0.0 %w2, %r, %lr : f32[16, 4]{tp, -}
  %top = reduce_max axes=[1] %h : f32[8]{(time,dp)} partial(max: tp)
  %m   = reshape shape=[8, 1] %top : f32[8, 1]{(time,dp), -} partial(max: tp)
  %mm  = all_reduce axes=[tp] kind=max %m : f32[8, 1]{(time,dp), -}
  %e   = sub %h, %mm : f32[8, 16]{(time,dp), tp}
  %all = all_gather dim=1 split=tp@8 %e : f32[8, 16]{(time,dp), -}
  %cut = shard_slice dim=1 split=tp@1 %all : f32[8, 16]{(time,dp), 8*tp}
  %pt  = reduce_scatter dim=1 kind=sum split=tp@2 %n : f32[8, 4]{(time,dp), tp}
  %ex  = all_to_all dim=1 split=tp@2 to_dim=0 to_split=tp@1 %pt : f32[8, 4]{(time,dp,tp), -}
  output "y" %y
  update "w2" <- %u
  gradient "w2" = %r
"#;

/// Values for the broken lines.
const SPARE: &str = r#"
  %lr0 = constant 0.5 : f32[]
  %top0 = constant fill 0.0 : f32[8]
  %a0 = constant fill 0.0 : f32[8, 16]
  %r0 = constant fill 0.0 : f32[16, 4]
  %v16 = constant fill 0.0 : f32[16]{tp}
  %i8 = constant fill 3 : i64[8]
  %j8 = constant fill 3 : i64[8]{tp}
"#;

fn explicit(body: &str) -> Graph {
    parse(&format!("graph @g  phase explicit\n  mesh dp=2 tp=2 time=2\n{body}")).expect("a graph")
}

fn first_error(graph: &Graph) -> String {
    match verify(graph) {
        Ok(()) => "nothing is wrong".to_string(),
        Err(violations) => {
            let text = report(graph, &violations[..1]);
            text.lines().last().expect("a line with a caret").trim_start_matches([' ', '^']).to_string()
        }
    }
}

#[test]
fn a_good_graph_passes() {
    assert_eq!(first_error(&explicit(GOOD)), "nothing is wrong");
}

#[test]
fn samples_pass() {
    for sample in samples().into_iter().filter(|s| !s.op.is_comm()) {
        let graph = sample.build().0.finish();
        assert_eq!(first_error(&graph), "nothing is wrong", "{graph}");
    }
}

#[test]
fn each_check_fires() {
    for (from, to, message) in [
        // 1 structure
        ("relu %h : f32[8, 16]", "relu %h : f64[8, 16]", "is f64[8, 16], but the op gives f32[8, 16]"),
        ("%n   = neg %p :", "%n = add %p, %w1 :", "shapes [8, 4] and [4, 16] do not broadcast"),
        (
            "%n   = neg %p : f32[8, 4]{(time,dp), -} partial(sum: tp)",
            "%n, %o = neg %p : (f32[8, 4], f32[8, 4])",
            "the op has 1 results, not 2",
        ),
        (
            "state \"w2\" : f32[16, 4]{tp, -}  p",
            "state \"w2\" : f32[16, 8]{tp, -}  p",
            "is f32[16, 4], but the op gives f32[16, 8]",
        ),
        ("<- %u", "<- %y", "is f32[16, 4], its update f32[8, 4]"),
        ("\"w2\" = %r", "\"w2\" = %y", "is f32[16, 4], its gradient f32[8, 4]"),
        ("update \"w2\"", "output \"y\" %r\n  update \"w2\"", "is the name of two outputs"),
        // 2 shardings
        (
            "f32[8]{(time,dp)} partial(max: tp)",
            "f32[8]{time@3} partial(max: tp)",
            "the splits of dimension 0 are no digits of an index below 8",
        ),
        ("relu %h : f32[8, 16]{(time,dp), tp}", "relu %h : f32[8, 16]{(time,dp), dp}", "depends on `dp` twice"),
        ("relu %h : f32[8, 16]{(time,dp), tp}", "relu %h : f32[8, 16]{(time,dp), tp} partial(sum: tp)", "depends on `tp` twice"),
        ("partial(max: tp)", "partial(max: tp) partial(sum: tp)", "depends on `tp` twice"),
        (
            "%g   = contract \"bn,bm->nm\" %a, %y : f32[16, 4]{tp, -} partial(sum: dp time)",
            "%g = contract \"bn,bm->nm\" %a, %y : f32[16, 4]{tp, -} partial(sum: dp) partial(max: time)",
            "is partial in two ways, whose order would matter",
        ),
        ("state \"w2\" : f32[16, 4]{tp, -}", "state \"w2\" : f32[16, 4]{time, -}", "is partial or split over time"),
        ("state \"w2\" : f32[16, 4]{tp, -}", "state \"w2\" : f32[16, 4] partial(sum: dp)", "is partial or split over time"),
        // 3 letters
        (
            "relu %h : f32[8, 16]{(time,dp), tp}",
            "relu %h : f32[8, 16]{(time,dp), -}",
            "dimension 1 is not split, but the same letter of `%h` is split {tp}",
        ),
        (
            "relu %h : f32[8, 16]{(time,dp), tp}",
            "relu %h : f32[8, 16]{(dp,time), tp}",
            "dimension 0 is split {(dp,time)}, but the same letter of `%h` is split {(time,dp)}",
        ),
        ("relu %h :", "softmax %h :", "`tp` splits a letter that `softmax` needs whole"),
        (
            "%e   = sub",
            "%z = reshape shape=[8, 8, 2] %h : f32[8, 8, 2]{(time,dp), -, tp}\n  %e   = sub",
            "dimension 1 is not split, but the same letter of `%h` is split {tp}",
        ),
        ("%e   = sub", "%z = reshape shape=[128] %h : f32[128]{[8:(time,dp) 16:tp]}\n  %e   = sub", "nothing is wrong"),
        (
            "%e   = sub",
            "%z = reshape shape=[4, 2, 16] %h : f32[4, 2, 16]{time, dp, tp}\n  %e   = sub",
            "dimension 0 is split {time}, but the same letter of `%h` is split {(time,dp)}",
        ),
        ("partial(sum: tp)\n  %n ", "\n  %n ", "is not partial, but the operands make it partial(sum: tp)"),
        ("partial(sum: dp time)", "partial(sum: dp)", "is partial(sum: dp), but the operands make it partial(sum: dp time)"),
        (
            "%n   = neg %p : f32[8, 4]{(time,dp), -} partial(sum: tp)",
            "%n = neg %p : f32[8, 4]{(time,dp), -}",
            "is not partial, but the operands make it partial(sum: tp)",
        ),
        ("neg %p", "exp %p", "is partial over `tp`, and `exp` is not linear in what is"),
        ("neg %p", "add %p, %p", "nothing is wrong"),
        ("neg %p", "mul %p, %p", "is partial over `tp`, and `mul` is not linear in what is"),
        ("neg %p", "mul %p, %lr0", "nothing is wrong"),
        ("neg %p", "add %p, %lr0", "is partial over `tp`, and `add` is not linear in what is"),
        (
            "reshape shape=[8, 1] %top :",
            "reshape shape=[8, 1] %top0 :",
            "dimension 0 is split {(time,dp)}, but the same letter of `%top0` is not split",
        ),
        (
            "%mm  = ",
            "%z = sum axes=[1] %m : f32[8]{(time,dp)} partial(max: tp)\n  %mm = ",
            "is partial over `tp`, and `sum` is not linear in what is",
        ),
        ("%mm  = ", "%z = reduce_max axes=[1] %m : f32[8]{(time,dp)} partial(max: tp)\n  %mm = ", "nothing is wrong"),
        (
            "%u   = ",
            "%z = contract \"nm,bn->bm\" %g, %a0 : f32[8, 4]{-, tp}\n  %u = ",
            "dimension 1 is not split, but the same letter of `%g` is split {tp}",
        ),
        (
            "%u   = ",
            "%z = contract \"n,bm->nbm\" %v16, %n : f32[16, 8, 4]{tp, (time,dp), -}\n  %u = ",
            "is partial over `tp`, which splits a letter of this op",
        ),
        ("%u   = ", "%z = gather axis=0 %v16, %i8 : f32[8] partial(sum: tp)\n  %u = ", "nothing is wrong"),
        ("%u   = ", "%z = gather axis=0 %v16, %j8 : f32[8]{tp}\n  %u = ", "`tp` splits two letters"),
        ("state \"w2\" : f32[16, 4]{tp, -}  p", "state \"w2\" : f32[16, 4]  p", "has another sharding than its state"),
        ("<- %u", "<- %r0", "is updated under another sharding than its own"),
        ("= %r\n", "= %t\n", "its gradient is partial"),
        ("output \"y\" %y", "output \"y\" %p", "is partial"),
        // 4 communication
        ("all_reduce axes=[tp] kind=sum %n", "all_reduce axes=[dp] kind=sum %n", "the operand is no partial sum over `dp`"),
        ("all_reduce axes=[tp] kind=max %m", "all_reduce axes=[tp] kind=sum %m", "the operand is no partial sum over `tp`"),
        ("all_reduce axes=[tp] kind=max %m", "all_reduce axes=[] kind=max %m", "should be {(time,dp), -} partial(max: tp)"),
        (
            "all_reduce axes=[dp] kind=sum %t",
            "all_reduce axes=[time] kind=sum %t",
            "micro-batches are accumulated, not all-reduced",
        ),
        ("%t   = accumulate kind=sum %g", "%t = accumulate kind=max %g", "the operand is no partial max over `time`"),
        (
            "accumulate kind=sum %g : f32[16, 4]{tp, -} partial(sum: dp)",
            "accumulate kind=sum %g : f32[16, 4]{tp, -}",
            "should be {tp, -} partial(sum: dp)",
        ),
        ("all_gather dim=1 split=tp@8", "all_gather dim=0 split=tp@8", "`tp` does not split dimension 0 there"),
        ("all_gather dim=1 split=tp@8", "all_gather dim=1 split=tp@4", "`tp` does not split dimension 1 there"),
        ("all_gather dim=1 split=tp@8", "all_gather dim=7 split=tp@8", "there is no dimension 7"),
        ("all_gather dim=1 split=tp@8", "all_gather dim=0 split=time@4", "micro-batches are not gathered"),
        ("{(time,dp), 8*tp}", "{(time,dp), tp}", "`tp` does not split dimension 1 there"),
        ("{(time,dp), 8*tp}", "{time, 8*tp}", "changes more than the one split"),
        ("reduce_scatter dim=1 kind=sum", "reduce_scatter dim=1 kind=max", "the operand is no partial max over `tp`"),
        ("reduce_scatter dim=1 kind=sum split=tp@2", "reduce_scatter dim=1 kind=sum split=tp@1", "should be {(time,dp), 2*tp}"),
        ("reduce_scatter dim=1", "reduce_scatter dim=2", "there is no dimension 2"),
        ("reduce_scatter dim=1 kind=sum split=tp@2", "reduce_scatter dim=1 kind=sum split=time@2", "accumulated, not scattered"),
        ("all_to_all dim=1 split=tp@2", "all_to_all dim=1 split=tp@1", "`tp` does not split dimension 1 there"),
        ("to_split=tp@1", "to_split=dp@1", "one axis of ranks moves from one digit to another"),
        ("to_split=tp@1", "to_split=tp@2", "`tp` cannot split dimension 0 there"),
        ("all_gather dim=1 split=tp@8", "reshard", "nothing is wrong"),
        (
            "%u   = ",
            "%z = flat_slice axes=[1, 9] %r0 : f32[16, 4] flat(tp)\n  %u = ",
            "names an axis that the mesh does not have",
        ),
        (
            "%u   = ",
            "%z = flat_scatter axes=[9] kind=sum %r0 : f32[16, 4] flat(tp)\n  %u = ",
            "names an axis that the mesh does not have",
        ),
        (
            "all_gather dim=1 split=tp@8 %e : f32[8, 16]{(time,dp), -}",
            "reshard %e : f32[8, 16]{(time,dp), -} partial(sum: tp)",
            "makes a value partial",
        ),
    ] {
        assert!(GOOD.contains(from), "`{from}` is not in the graph");
        let body = GOOD.replacen(from, to, 1);
        let at = body.find("  %x ").expect("the first node");
        let error = first_error(&explicit(&format!("{}{SPARE}{}", &body[..at], &body[at..])));
        assert!(error.contains(message), "`{to}`:\n  {error}\nis not\n  {message}");
    }
}

#[test]
fn any_one_changed_sharding_is_noticed() {
    let good = explicit(GOOD);
    let mut changed = 0;
    for (id, value) in good.values() {
        for axis in (0..good.mesh.axes().len() as u8).map(AxisId) {
            let mut variants = vec![value.sharding.clone(); 3];
            variants[0].partial.retain(|p| p.axis != axis);
            variants[0].dims.iter_mut().for_each(|splits| splits.retain(|s| s.axis != axis));
            variants[1].add_partial(axis, ReduceKind::Sum);
            if let (Some(splits), Some(size)) = (variants[2].dims.first_mut(), value.ty.shape.first()) {
                *splits = with_split(splits, Split { axis, stride: size / 8 }, *size, &good.mesh).unwrap_or_default();
            }
            for variant in variants.into_iter().filter(|v| *v != value.sharding) {
                let mut graph = good.clone();
                graph.set_sharding(id, variant);
                assert!(verify(&graph).is_err(), "`%{}` is wrong and nobody notices\n{graph}", value.name);
                changed += 1;
            }
        }
    }
    assert!(changed > 100, "{changed} graphs are not enough");
}

#[test]
fn earlier_phases_are_whole() {
    for (phase, line, message) in [
        ("raised", "%y = neg %x : f32[2]{dp}", "is not whole everywhere, which belongs to phase `annotated`"),
        ("raised", "%y = reshard %x : f32[2]", "communication has no place in phase `raised`"),
        ("annotated", "%y = neg %x : f32[2]{dp}", "nothing is wrong"),
        ("explicit", "%y = neg %x : f32[2]{dp}", "dimension 0 is split {dp}, but the same letter of `%x` is not split"),
    ] {
        let graph = parse(&format!("graph @g  phase {phase}\n mesh dp=2 time=1\n %x = input \"x\" : f32[2]\n {line}\n"));
        assert_eq!(first_error(&graph.expect("a graph")), message, "{phase}");
    }
}

#[test]
fn what_text_cannot_say_is_checked_too() {
    let mut graph = explicit(GOOD);
    let y = graph.named("y").expect("a value");
    graph.set_sharding(y, Sharding::replicated(3));
    assert_eq!(first_error(&graph), "has 2 dimensions, its sharding 3");

    let mut graph = explicit(GOOD);
    let twin = graph.states[0].clone();
    graph.states.push(twin);
    let violations = verify(&graph).expect_err("two states of one name");
    assert_eq!(violations[0].place, Site::State(StateId(2)));
}

#[test]
fn the_report_points_at_the_operand() {
    let graph = explicit(&GOOD.replace("relu %h :", "softmax %h :").replace("neg %p", "exp %p"));
    let violations = verify(&graph).expect_err("two mistakes");
    assert_eq!(violations[0].place, Site::Node(NodeId(4)));
    let expected = "graph @g breaks the rules of phase `explicit`

  %a = softmax %h : f32[8, 16]{(time,dp), tp}  // a(b)->a(b)
  ^^ `tp` splits a letter that `softmax` needs whole

  %n = exp %p : f32[8, 4]{(time,dp), -} partial(sum: tp)  // ab->ab
           ^^ is partial over `tp`, and `exp` is not linear in what is
";
    assert_eq!(report(&graph, &violations), expected);
}

/// Sizes that together are no number are refused, and do not begin again at 0.
#[test]
fn concatenations_of_too_much_are_refused() {
    let parts = vec![Type::new(DType::F32, [1 << 48]); 1 << 16];
    let refused = Op::from(Concat { axis: 0 }).rules().result(&parts).expect_err("their sum is 2^64");
    assert_eq!(refused.to_string(), "the result is too large");
}
