//! GPTs of any size without weights: every parameter is external data in a file that does not
//! exist. For plans of models that no machine of ours could hold.

use crate::onnx::{float, graph, initializer, input, int, int_list, ints, model, node, output, raw, string};
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::{DataLocation, DataType};

/// The sizes of a GPT.
#[derive(Debug, Clone, Copy)]
pub struct Gpt {
    /// Blocks.
    pub layers: i64,
    /// The length of a token's vector.
    pub width: i64,
    /// Heads of attention, each of `width / heads`.
    pub heads: i64,
    /// Tokens that there are.
    pub vocabulary: i64,
    /// Tokens of a sample.
    pub tokens: i64,
    /// Samples that it was exported with.
    pub batch: i64,
}

/// The lowest number that attention hides with.
const HIDDEN: f32 = -3.4e38;

impl Gpt {
    /// The model: tokens `x` to `logits`, with the head tied to the table of tokens.
    pub fn model(&self) -> pb::ModelProto {
        let Gpt { layers, width, heads, vocabulary, tokens, batch } = *self;
        let of_head = width / heads;
        let mut m = model(20);
        input(&mut m, "x", DataType::Int64, &[batch, tokens]);
        parameter(&mut m, "wte.weight", &[vocabulary, width]);
        parameter(&mut m, "wpe.weight", &[tokens, width]);
        let range: Vec<i64> = (0..tokens).collect();
        for tensor in [
            ints("positions", &[1, tokens], &range),
            ints("range", &[tokens], &range),
            ints("rows", &[2], &[tokens, 1]),
            ints("columns", &[2], &[1, tokens]),
            ints("to.heads", &[4], &[0, 0, heads, of_head]),
            ints("from.heads", &[3], &[0, 0, width]),
            scalar("scale", (of_head as f32).powf(-0.5)),
            scalar("lowest", HIDDEN),
        ] {
            initializer(&mut m, tensor);
        }
        node(&mut m, "Gather", "wte.weight x", "wte.out", vec![]);
        node(&mut m, "Gather", "wpe.weight positions", "wpe.out", vec![]);
        node(&mut m, "Add", "wte.out wpe.out", "embedding", vec![]);
        node(&mut m, "Reshape", "range rows", "query.index", vec![]);
        node(&mut m, "Reshape", "range columns", "key.index", vec![]);
        node(&mut m, "LessOrEqual", "key.index query.index", "causal", vec![]);
        let mut x = "embedding".to_string();
        for layer in 0..layers {
            x = self.block(&mut m, &format!("h.{layer}."), &x);
        }
        norm(&mut m, "ln_f", &x, width);
        node(&mut m, "Transpose", "wte.weight", "wte.T", vec![int_list("perm", vec![1, 0])]);
        node(&mut m, "MatMul", "ln_f.out wte.T", "logits", vec![]);
        output(&mut m, "logits");
        m
    }

    /// Appends a block, and gives the name of what comes out.
    fn block(&self, m: &mut pb::ModelProto, p: &str, x: &str) -> String {
        let width = self.width;
        norm(m, &format!("{p}ln_1"), x, width);
        linear(m, &format!("{p}attn.c_attn"), &format!("{p}ln_1.out"), [width, 3 * width]);
        let qkv = ["q", "k", "v"].map(|n| format!("{p}{n}"));
        node(m, "Split", &format!("{p}attn.c_attn.out"), &qkv.join(" "), vec![int("axis", 2), int("num_outputs", 3)]);
        for (name, perm) in [("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])] {
            node(m, "Reshape", &format!("{p}{name} to.heads"), &format!("{p}{name}.split"), vec![]);
            let perm = vec![int_list("perm", perm.to_vec())];
            node(m, "Transpose", &format!("{p}{name}.split"), &format!("{p}{name}.heads"), perm);
        }
        node(m, "MatMul", &format!("{p}q.heads {p}k.heads"), &format!("{p}scores"), vec![]);
        node(m, "Mul", &format!("{p}scores scale"), &format!("{p}scaled"), vec![]);
        node(m, "Where", &format!("causal {p}scaled lowest"), &format!("{p}masked"), vec![]);
        node(m, "Softmax", &format!("{p}masked"), &format!("{p}attention"), vec![int("axis", -1)]);
        node(m, "MatMul", &format!("{p}attention {p}v.heads"), &format!("{p}mixed"), vec![]);
        node(m, "Transpose", &format!("{p}mixed"), &format!("{p}back"), vec![int_list("perm", vec![0, 2, 1, 3])]);
        node(m, "Reshape", &format!("{p}back from.heads"), &format!("{p}merged"), vec![]);
        linear(m, &format!("{p}attn.c_proj"), &format!("{p}merged"), [width, width]);
        node(m, "Add", &format!("{x} {p}attn.c_proj.out"), &format!("{p}residual_1"), vec![]);
        norm(m, &format!("{p}ln_2"), &format!("{p}residual_1"), width);
        linear(m, &format!("{p}mlp.c_fc"), &format!("{p}ln_2.out"), [width, 4 * width]);
        node(m, "Gelu", &format!("{p}mlp.c_fc.out"), &format!("{p}gelu"), vec![string("approximate", "tanh")]);
        linear(m, &format!("{p}mlp.c_proj"), &format!("{p}gelu"), [4 * width, width]);
        node(m, "Add", &format!("{p}residual_1 {p}mlp.c_proj.out"), &format!("{p}residual_2"), vec![]);
        format!("{p}residual_2")
    }
}

fn norm(m: &mut pb::ModelProto, name: &str, x: &str, width: i64) {
    parameter(m, &format!("{name}.weight"), &[width]);
    parameter(m, &format!("{name}.bias"), &[width]);
    let epsilon = vec![float("epsilon", 1e-5)];
    node(m, "LayerNormalization", &format!("{x} {name}.weight {name}.bias"), &format!("{name}.out"), epsilon);
}

fn linear(m: &mut pb::ModelProto, name: &str, x: &str, sizes: [i64; 2]) {
    parameter(m, &format!("{name}.weight"), &sizes);
    parameter(m, &format!("{name}.bias"), &sizes[1..]);
    node(m, "MatMul", &format!("{x} {name}.weight"), &format!("{name}.product"), vec![]);
    node(m, "Add", &format!("{name}.product {name}.bias"), &format!("{name}.out"), vec![]);
}

fn scalar(name: &str, value: f32) -> pb::TensorProto {
    raw(name, DataType::Float, &[], value.to_le_bytes().to_vec())
}

/// Adds a parameter whose elements are nowhere.
fn parameter(m: &mut pb::ModelProto, name: &str, sizes: &[i64]) {
    let held = graph(m).initializer.iter().filter(|t| t.data_location == Some(DataLocation::External as i32));
    let offset: i64 = held.map(|tensor| 4 * tensor.dims.iter().product::<i64>()).sum();
    let length = 4 * sizes.iter().product::<i64>();
    let entry = |(key, value): (&str, String)| pb::StringStringEntryProto { key: key.into(), value };
    let entries = [("location", "weights.bin".to_string()), ("offset", offset.to_string()), ("length", length.to_string())];
    initializer(
        m,
        pb::TensorProto {
            name: name.into(),
            data_type: DataType::Float as i32,
            dims: sizes.to_vec(),
            data_location: Some(DataLocation::External as i32),
            external_data: entries.map(entry).into(),
            ..Default::default()
        },
    );
}
