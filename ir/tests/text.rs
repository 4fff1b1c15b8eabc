//! The text form: a fixed point of print and parse on every op, shardings back from their text, and
//! no panic on any text.

use shardc_ir::graph::{Graph, NodeOrigin, Output, Phase};
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::ops::samples::samples;
use shardc_ir::ops::{Op, layout};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::sharding::{Sharding, Split, Splits, with_split};
use shardc_ir::text::{node_text, parse, print};
use shardc_ir::verify::{report, verify};

/// The example of the design, made explicit.
const MLP: &str = r#"graph @mlp  phase explicit
  mesh dp=2 tp=2 time=1
  state "w1"    : f32[4, 16]{-, tp}  parameter init=model
  state "w2"    : f32[16, 4]{tp, -}  parameter init=normal(0.02)
  state "b2"    : f32[4]             parameter init=zeros
  state "w1.m"  : f32[4, 16]{-, tp}  moment init=zeros
  state "scale" : f32[4]             frozen init=ones
  %x      = input "x"                        : f32[8, 4]{dp, -}
  %t      = label "t"                        : f32[8, 4]{dp, -}
  %w1     = state "w1"                       : f32[4, 16]{-, tp}
  %w2     = state "w2"                       : f32[16, 4]{tp, -} asked(tp: 7, dp: 5)
  %b2     = state "b2"                       : f32[4]
  %h      = contract "bk,kn->bn" %x, %w1     : f32[8, 16]{dp, tp} @fc1
  %a      = gelu_tanh %h                     : f32[8, 16]{dp, tp} @act                 // ab->ab
  %p      = contract "bn,nm->bm" %a, %w2     : f32[8, 4]{dp, -} partial(sum: tp) @fc2
  %q      = all_reduce axes=[tp] kind=sum %p : f32[8, 4]{dp, -} @fc2 reason="for \"fc2\" {tp, -}" line=7  // ab->ab
  %d      = sub %q, %t                       : f32[8, 4]{dp, -} backward               // ab,ab->ab
  %half   = constant 0.5                     : f32[]
  %table  = constant [1, -2, 3]              : i64[3]
  %causal = constant fill false              : bool[4, 4]
  %nan    = constant fill "0100c07f"         : f32[16]
  %lr     = host learning_rate               : f64[]
  %lr32   = cast f32 %lr                     : f32[]
  %n, %r  = rms_norm eps=1e-6 %q, %b2        : (f32[8, 4]{dp, -}, f32[8]{dp}) update   // a(b),(b)->a(b),a
  output "y" %q
  output "loss sum" %n
  update "w1" <- %w1
  gradient "w1" = %w2
"#;

#[test]
fn the_example_is_a_fixed_point() {
    assert_eq!(print(&parse(MLP).expect("the example parses")), MLP);
}

#[test]
fn every_sample_is_a_fixed_point_and_comes_back_equal() {
    for sample in samples() {
        let (mut builder, _, results) = sample.build();
        let name = sample.op.name();
        builder.origin = NodeOrigin {
            scope: Some("a b/\"c\"".into()),
            part: shardc_ir::graph::Part::Backward,
            stage: Some(2),
            reason: Some("two\nlines // and \\ \u{1F600}".into()),
            spec_line: Some(3),
        };
        let copy = builder.op(layout::Transpose { perm: (0..builder.ty(results[0]).rank()).rev().collect() }, &results[..1]);
        builder.graph_mut().outputs.push(Output { name: "an \"output\"".into(), value: copy });
        let graph = builder.finish();
        let text = print(&graph);
        let back = parse(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
        assert_eq!(print(&back), text, "{name}");
        assert!(same(&graph, &back), "{name} changes on its way through\n{text}");
    }
}

/// Whether both graphs are equal in all but the order of petgraph's internals.
fn same(a: &Graph, b: &Graph) -> bool {
    let nodes = |g: &Graph| g.nodes().map(|(_, n)| n.clone()).collect::<Vec<_>>();
    let values = |g: &Graph| g.values().map(|(_, v)| v.clone()).collect::<Vec<_>>();
    let tables = |g: &Graph| (g.name.clone(), g.phase, g.mesh.clone(), g.states.clone(), g.outputs.clone());
    nodes(a) == nodes(b) && values(a) == values(b) && tables(a) == tables(b)
}

#[test]
fn a_node_has_a_line_of_its_own() {
    let graph = parse("graph @g  phase raised\n %x = input \"x\" : f32[2]\n %y=neg %x: f32[2] line=4//?").expect("parses");
    let last = graph.nodes().last().expect("two nodes").0;
    assert_eq!(node_text(&graph, last), "%y = neg %x : f32[2] line=4  // a->a");
}

#[test]
fn errors_name_line_and_cause() {
    for (line, message) in [
        ("%y = neg %z : f32[2]", "`%z` is not defined yet"),
        ("%x = neg %x : f32[2]", "`%x` is defined twice"),
        ("%y = frobnicate %x : f32[2]", "there is no op `frobnicate`"),
        ("%y = neg speed=3 %x : f32[2]", "`neg` has no attribute `speed`"),
        ("%y = add f=sub %x, %x : f32[2]", "`add` has no attribute `f`"),
        ("%y = neg %x : f33[2]", "there is no element type `f33`"),
        ("%y = neg %x : f32[2]{dp, dp}", "more dimensions in the sharding than in the type"),
        ("%y = neg %x : f32[2]{pp}", "the mesh has no axis `pp`"),
        ("%y = neg %x : f32[3]{dp}", "`dp` has 2 positions, which do not divide 3"),
        ("%y = neg %x : f32[281474976710656, 2]", "the type is too large"),
        (&format!("%y = neg %x : f32[{}]", ["1"; 65].join(", ")), "the type is too large"),
        ("%y, %z = neg %x : f32[2]", "2 results have 1 types"),
        ("%y, %y = neg %x : f32[2]", "`%y` is defined twice"),
        ("%y = constant [1.0] : f32[2]", "these are not the elements of f32[2]"),
        ("%y = constant fill \"0100\" : f32[16]", "these are not the elements of f32[16]"),
        ("%y = constant fill 0.0 : f32[8388609]", "f32[8388609] is too large for a text of this size"),
        (&format!("%y = transpose perm=[{}] %x : f32[2]", ["0"; 131_073].join(", ")), "the line has too many values"),
        (&format!("%y = neg a=[{}] %x : f32[2]", ["{b=0}"; 8192].join(", ")), "the line has too many values"),
        (&format!("%y = constant [{}] : f32[2]", ["0"; 131_073].join(", ")), "the list is too long"),
        ("%y = all_reduce axes=[pp] kind=sum %x : f32[2]", "the mesh has no axis `pp`"),
        ("%y = state \"w\" : f32[2]", "state \"w\" is not declared"),
        ("%y = neg %x : f32[2] forward", "`forward` is not expected here"),
        ("mesh dp=2 time=1", "a line does not begin with `mesh`"),
        ("update \"w\" <- %x", "state \"w\" is not declared"),
        ("output \"y %x", "a string is expected at `\"y %x`"),
    ] {
        let text = format!("graph @g  phase raised\n  mesh dp=2 time=1\n  %x = input \"x\" : f32[2]\n\n  {line}\n");
        let error = parse(&text).expect_err(line);
        assert_eq!((error.line, error.message.as_str()), (5, message), "{line}");
    }
}

#[test]
fn shardings_come_back_from_their_text() {
    let mesh = Mesh::new([("dp".into(), 2), ("tp".into(), 3), ("fsdp".into(), 2), ("one".into(), 1)], 4);
    let mut random = Random(7);
    let mut shapes_of_text = [0; 4];
    for round in 0..20_000 {
        let shape: Vec<u64> = (0..random.below(4)).map(|_| [1, 2, 12, 48, 144, 7, 0][random.below(7)]).collect();
        let sharding = random_sharding(&mut random, &shape, &mesh);
        let text = sharding.text(&shape, &mesh);
        let gap = if text.starts_with("partial") { " " } else { "" };
        let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
        let line = format!("f32[{}]{gap}{text}", sizes.join(", "));
        let graph = format!("graph @g  phase explicit\n mesh dp=2 tp=3 fsdp=2 one=1 time=4\n %x = input \"x\" : {line}");
        let graph = parse(&graph).unwrap_or_else(|e| panic!("round {round}: {e}\n{line}"));
        assert_eq!(*graph.sharding(graph.named("x").expect("it is there")), sharding, "{line}");
        for (seen, mark) in shapes_of_text.iter_mut().zip([":", "*", "(", "partial"]) {
            *seen += usize::from(text.contains(mark));
        }
    }
    assert!(shapes_of_text.iter().all(|n| *n > 500), "every form occurs: {shapes_of_text:?}");
}

fn random_sharding(random: &mut Random, shape: &[u64], mesh: &Mesh) -> Sharding {
    let mut sharding = Sharding::replicated(shape.len());
    for axis in (0..mesh.axes().len() as u8).map(AxisId) {
        match random.below(4) {
            0 => sharding.add_partial(axis, ReduceKind::Sum),
            1 => {}
            _ if shape.is_empty() => {}
            _ => {
                let d = random.below(shape.len());
                let strides: Vec<u64> = (1..=shape[d]).filter(|s| shape[d].is_multiple_of(*s)).collect();
                let fits = |stride: &u64| with_split(&sharding.dims[d], Split { axis, stride: *stride }, shape[d], mesh);
                let choices: Vec<Splits> = strides.iter().filter_map(fits).collect();
                if !choices.is_empty() {
                    sharding.dims[d] = choices[random.below(choices.len())].clone();
                }
            }
        }
    }
    sharding
}

#[test]
fn no_text_makes_parser_or_verifier_panic() {
    let mut seeds: Vec<String> = samples().iter().map(|s| print(&s.build().0.finish())).collect();
    seeds.push(MLP.to_string());
    let fragments = [
        "%x",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        "=",
        ":",
        "*",
        "@",
        "-",
        "\"",
        "\\",
        "//",
        "9",
        "18446744073709551615",
        "-1",
        "0",
        "1e999",
        "NaN",
        "dp",
        "tp",
        "time",
        "partial(sum: tp)",
        "{dp, -}",
        "[8:dp 2]",
        "dp@0",
        "f32[0]",
        "\n",
        "é",
        "fill 0.0",
        "axis=7",
        "[[[[[[[[[[[[[[[[[[[[",
        "{a={a={a={a={a=",
        "state \"w1\"",
        "true",
    ];
    let mut random = Random(11);
    let (mut graphs, mut sound) = (0, 0);
    for round in 0..40_000 {
        let mut text: Vec<char> = seeds[random.below(seeds.len())].chars().collect();
        for _ in 0..=random.below(4) {
            let digits: Vec<usize> = (0..text.len()).filter(|i| text[*i].is_ascii_digit()).collect();
            if random.below(2) == 0 && !digits.is_empty() {
                text[digits[random.below(digits.len())]] = ['0', '1', '2', '3', '4', '6', '8', '9'][random.below(8)];
                continue;
            }
            let at = random.below(text.len() + 1);
            let end = (at + random.below(6)).min(text.len());
            let insert: Vec<char> = match random.below(3) {
                0 => vec![],
                1 => fragments[random.below(fragments.len())].chars().collect(),
                _ => {
                    let from = random.below(text.len() + 1);
                    text[from..(from + random.below(12)).min(text.len())].to_vec()
                }
            };
            text.splice(at..end, insert);
        }
        let text: String = text.into_iter().collect();
        if let Ok(graph) = parse(&text) {
            graphs += 1;
            let printed = print(&graph);
            let again = parse(&printed).unwrap_or_else(|e| panic!("round {round}: {e}\nof {text}\nprinted {printed}"));
            assert_eq!(print(&again), printed, "round {round}: {text}");
            match verify(&graph) {
                Ok(()) => sound += 1,
                Err(violations) => assert!(!report(&graph, &violations).is_empty()),
            }
        }
    }
    assert!(sound > 1_000 && graphs > sound + 1_000, "mutants of every kind: {graphs} parse, {sound} of them are sound");
}

#[test]
fn names_of_phases_and_ops_are_words() {
    let word = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    assert!(Op::names().into_iter().all(word));
    assert!(Phase::ALL.into_iter().all(|p| word(p.name())));
}

/// A generator of Knuth's: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }
}
