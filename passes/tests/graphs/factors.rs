//! Gradients that are made by rows, of gathered factors: they are what one device computes, and
//! nothing else is made so.

use shardc_ir::dtype::DType;
use shardc_ir::graph::Graph;
use shardc_ir::ops::Op;
use shardc_ir::text::parse;
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_testkit::{feed, step};

/// A convolution and two layers with gradients of a MiB and more, and a small layer.
const MODEL: &str = r#"graph @wide  phase imported
  state "conv.w" : f64[128, 128, 3, 3]  parameter init=model
  state "a.w"    : f64[128, 4096]       parameter init=model
  state "b.w"    : f64[4096, 128]       parameter init=model
  state "c.w"    : f64[128, 4]          parameter init=model
  %x      = input "x"                     : f64[8, 128, 2, 2]
  %conv.w = state "conv.w"                : f64[128, 128, 3, 3]
  %a.w    = state "a.w"                   : f64[128, 4096]
  %b.w    = state "b.w"                   : f64[4096, 128]
  %c.w    = state "c.w"                   : f64[128, 4]
  %k      = conv groups=1 window={dilations=[1, 1] pads=[[1, 1], [1, 1]] strides=[1, 1]} %x, %conv.w : f64[8, 128, 2, 2]
  %m      = sum axes=[2, 3] %k            : f64[8, 128]
  %h      = contract "bk,kn->bn" %m, %a.w : f64[8, 4096]
  %t      = tanh %h                       : f64[8, 4096] @mlp
  %p      = contract "bk,kn->bn" %t, %b.w : f64[8, 128]
  %y      = contract "bk,kn->bn" %p, %c.w : f64[8, 4]
  output "y" %y
"#;

fn graph() -> Graph {
    parse(MODEL).unwrap()
}

/// A spec of this mesh with more lines.
fn spec(mesh: &str, lines: &str) -> String {
    format!("{mesh}\n{lines}loss mse prediction=y labels=t\noptimizer adamw lr=0.1\nclip norm=0.5\n")
}

/// The parameters whose gradients ranks make by rows.
fn by_rows(explicit: &Graph) -> Vec<&str> {
    let is_gathered =
        |of: &&shardc_ir::graph::State| of.gradient.is_some_and(|gradient| matches!(explicit.def(gradient).op, Op::AllGather(_)));
    explicit.states.iter().filter(is_gathered).map(|state| state.name.as_str()).collect()
}

#[test]
fn they_are_what_one_device_computes() {
    let all = ["conv.w", "a.w", "b.w"];
    let cases: [(&str, &str, &[&str]); 12] = [
        ("mesh dp=2", "batch 8\ndata axis=dp\n", &all),
        ("mesh dp=2 tp=1", "batch 8\ndata axis=dp\nrecompute \"*\"\n", &all),
        ("mesh dp=4", "batch 8\ndata axis=dp\n", &["a.w", "b.w"]),
        ("mesh dp=8", "batch 8\ndata axis=dp\n", &[]),
        ("mesh dp=2", "batch 8\ndata axis=dp\ndevice memory=1GiB\n", &[]),
        ("mesh dp=2", "batch 8\ndata axis=dp\nrecompute budget=1GiB\n", &[]),
        ("mesh dp=2 tp=2", "batch 8\ndata axis=dp\nshard \"conv.w\" [tp, -, -, -]\n", &[]),
        ("mesh dp=2 tp=2", "batch 8\ndata axis=(dp,tp)\n", &[]),
        ("mesh dp=4", "batch 8\ndata axis=dp\nzero stage=1 axis=dp\n", &[]),
        ("mesh dp=4", "batch 8\ndata axis=dp\nzero stage=3 axis=dp\n", &[]),
        ("mesh dp=2", "batch 8 microbatches=2\ndata axis=dp\n", &[]),
        ("mesh tp=2", "batch 8\nshard \"a.w\" [-, tp]\nshard \"b.w\" [tp, -]\n", &[]),
    ];
    let one = step::spec(&spec("", "batch 8\n")).unwrap();
    let (_, one) = step::proven(&graph(), &one).unwrap();
    let (states, inputs) = (feed::states(&graph(), DType::F64, 0), feed::inputs(&one, &graph(), DType::F64, 0));
    let want = step::step(&one, &states, &inputs);
    for (mesh, lines, shared_out) in cases {
        let spec = step::spec(&spec(mesh, lines)).unwrap();
        let (explicit, programs) = step::proven(&graph(), &spec).unwrap();
        assert_eq!(by_rows(&explicit), shared_out, "{mesh}\n{lines}");
        let (reference, _) = step::proven(&graph(), &spec.reference()).unwrap();
        same_when_erased(&explicit, &reference).unwrap();
        let got = step::step(&programs, &states, &inputs);
        for (name, value) in &want.outputs {
            assert!(
                (value - got.outputs[name]).abs() <= 1e-12 * value.abs(),
                "{mesh}\n{lines}{name} {value} {}",
                got.outputs[name]
            );
        }
        for (want, got) in [(&want.gradients, &got.gradients), (&want.parameters, &got.parameters)] {
            for (name, values) in want {
                let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9;
                let agrees = values.len() == got[name].len() && values.iter().zip(&got[name]).all(is_near);
                assert!(agrees, "{mesh}\n{lines}{name} is another");
            }
        }
    }
}

#[test]
fn more_samples_are_summed_up() {
    let model = MODEL.replace("f64[8, ", "f64[256, ");
    let spec = step::spec(&spec("mesh dp=2", "batch 256\ndata axis=dp\n")).unwrap();
    let (explicit, _) = step::proven(&parse(&model).unwrap(), &spec).unwrap();
    assert_eq!(by_rows(&explicit), [""; 0]);
}
