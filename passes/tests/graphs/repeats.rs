//! Equal blocks are found, and a model with fewer of them is the model that was exported with
//! fewer.

use shardc_frontend::onnx::{ImportOptions, Weights};
use shardc_ir::graph::Graph;
use shardc_passes::repeats::repeats;
use shardc_testkit::gpt::Gpt;
use shardc_testkit::onnx::import_model;
use std::collections::BTreeSet;

fn gpt(layers: i64) -> Graph {
    let gpt = Gpt { layers, width: 32, heads: 4, vocabulary: 50, tokens: 8, batch: 2 };
    import_model(&gpt.model(), &ImportOptions { weights: Weights::NotNeeded, training: true, ..ImportOptions::default() })
        .unwrap()
        .graph
}

/// What the graph computes, node by node, without the names of its values.
fn ops(graph: &Graph) -> Vec<String> {
    let node = |node: &shardc_ir::graph::Node| {
        let types: Vec<String> = node.results.iter().map(|v| graph.ty(*v).to_string()).collect();
        format!("{} {:?} {}", node.op.name(), node.operands, types.join(" "))
    };
    graph.nodes().map(|(_, of)| node(of)).collect()
}

#[test]
fn a_shortened_model_is_one_of_fewer_layers() {
    let deep = gpt(6);
    let found = repeats(&deep).unwrap();
    assert_eq!((found.count(), found.scopes(&deep).as_deref()), (6, Some("h.*")));
    for keep in [1, 2, 5] {
        let (short, made) = (found.shortened(&deep, keep), gpt(keep as i64));
        assert_eq!(ops(&short), ops(&made), "{keep} blocks");
        let names = |graph: &Graph| graph.states.iter().map(|state| state.name.clone()).collect::<BTreeSet<_>>();
        assert_eq!(names(&short), names(&made));
    }
    assert_eq!(ops(&found.shortened(&deep, 6)), ops(&deep), "all of them");
}

#[test]
fn two_blocks_repeat_nothing() {
    assert_eq!(repeats(&gpt(2)), None);
}
