//! The jobs that `tests/gpu.sh` times: a GPT-2 of any size as a graph without weights, and tokens.

use super::fake::told;
use prost::Message;
use shardc_executor::data::write_npz;
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_testkit::onnx::{float, floats, graph, initializer, input, int, int_list, ints, model, node, output, string};
use shardc_testkit::random::Random;
use std::collections::BTreeMap;
use std::path::Path;
use tract_onnx::pb;
use tract_onnx::pb::tensor_proto::{DataLocation, DataType};

/// The folder that the jobs are written into.
const FOLDER: &str = "SHARDC_GPU_JOBS";

/// Batches of data.
const BATCHES: usize = 2;

/// The sizes of a GPT-2, and the precision of its job.
struct Size {
    name: &'static str,
    layers: usize,
    width: i64,
    heads: i64,
    vocabulary: i64,
    length: i64,
    batch: i64,
}

const SIZES: [Size; 2] = [
    Size { name: "gpt2-124m", layers: 12, width: 768, heads: 12, vocabulary: 50_304, length: 1024, batch: 32 },
    // What the software CUDA trains in seconds.
    Size { name: "gpt2-small", layers: 1, width: 32, heads: 2, vocabulary: 64, length: 16, batch: 4 },
];

/// A model under construction, whose weights would lie one behind another.
struct Gpt {
    model: pb::ModelProto,
    bytes: i64,
}

impl Gpt {
    /// A parameter whose values are elsewhere.
    fn parameter(&mut self, name: &str, sizes: &[i64]) {
        let length = 4 * sizes.iter().product::<i64>();
        let entries = [("location", "weights.data".into()), ("offset", self.bytes.to_string()), ("length", length.to_string())];
        let entry = |(key, value): (&str, String)| pb::StringStringEntryProto { key: key.into(), value };
        let tensor = pb::TensorProto {
            name: name.into(),
            data_type: DataType::Float as i32,
            dims: sizes.to_vec(),
            data_location: Some(DataLocation::External as i32),
            external_data: entries.map(entry).into(),
            ..Default::default()
        };
        self.bytes += length;
        initializer(&mut self.model, tensor);
    }

    fn op(&mut self, op: &str, inputs: &str, result: &str, attributes: Vec<pb::AttributeProto>) {
        node(&mut self.model, op, inputs, result, attributes);
    }

    /// `result = x * weight + bias`.
    fn linear(&mut self, name: &str, x: &str, [from, to]: [i64; 2]) {
        self.parameter(&format!("{name}.weight"), &[from, to]);
        self.parameter(&format!("{name}.bias"), &[to]);
        self.op("MatMul", &format!("{x} {name}.weight"), &format!("{name}.product"), vec![]);
        self.op("Add", &format!("{name}.product {name}.bias"), &format!("{name}.out"), vec![]);
    }

    fn norm(&mut self, name: &str, x: &str, width: i64) {
        self.parameter(&format!("{name}.weight"), &[width]);
        self.parameter(&format!("{name}.bias"), &[width]);
        self.op("LayerNormalization", &format!("{x} {name}.weight {name}.bias"), &format!("{name}.out"), vec![]);
    }

    fn block(&mut self, h: &str, x: &str, size: &Size) -> String {
        let width = size.width;
        self.norm(&format!("{h}.ln_1"), x, width);
        self.linear(&format!("{h}.c_attn"), &format!("{h}.ln_1.out"), [width, 3 * width]);
        let parts = format!("{h}.q {h}.k {h}.v");
        self.op("Split", &format!("{h}.c_attn.out"), &parts, vec![int("axis", 2), int("num_outputs", 3)]);
        for (part, order) in [("q", vec![0, 2, 1, 3]), ("k", vec![0, 2, 3, 1]), ("v", vec![0, 2, 1, 3])] {
            self.op("Reshape", &format!("{h}.{part} to.heads"), &format!("{h}.{part}.parts"), vec![]);
            let order = vec![int_list("perm", order)];
            self.op("Transpose", &format!("{h}.{part}.parts"), &format!("{h}.{part}.heads"), order);
        }
        self.op("MatMul", &format!("{h}.q.heads {h}.k.heads"), &format!("{h}.scores"), vec![]);
        self.op("Mul", &format!("{h}.scores scale"), &format!("{h}.scaled"), vec![]);
        self.op("Where", &format!("causal {h}.scaled lowest"), &format!("{h}.masked"), vec![]);
        self.op("Softmax", &format!("{h}.masked"), &format!("{h}.attention"), vec![int("axis", -1)]);
        self.op("MatMul", &format!("{h}.attention {h}.v.heads"), &format!("{h}.mixed"), vec![]);
        self.op("Transpose", &format!("{h}.mixed"), &format!("{h}.back"), vec![int_list("perm", vec![0, 2, 1, 3])]);
        self.op("Reshape", &format!("{h}.back from.heads"), &format!("{h}.merged"), vec![]);
        self.linear(&format!("{h}.c_proj"), &format!("{h}.merged"), [width, width]);
        self.op("Add", &format!("{x} {h}.c_proj.out"), &format!("{h}.middle"), vec![]);
        self.norm(&format!("{h}.ln_2"), &format!("{h}.middle"), width);
        self.linear(&format!("{h}.c_fc"), &format!("{h}.ln_2.out"), [width, 4 * width]);
        self.op("Gelu", &format!("{h}.c_fc.out"), &format!("{h}.gelu"), vec![string("approximate", "tanh")]);
        self.linear(&format!("{h}.c_out"), &format!("{h}.gelu"), [4 * width, width]);
        self.op("Add", &format!("{h}.middle {h}.c_out.out"), &format!("{h}.out"), vec![]);
        format!("{h}.out")
    }
}

fn gpt(size: &Size) -> pb::ModelProto {
    let Size { layers, width, heads, vocabulary, length, batch, .. } = *size;
    let mut gpt = Gpt { model: model(20), bytes: 0 };
    input(&mut gpt.model, "x", DataType::Int64, &[batch, length]);
    let positions: Vec<i64> = (0..length).collect();
    let constants = [
        ints("positions", &[1, length], &positions),
        ints("keys", &[1, length], &positions),
        ints("queries", &[length, 1], &positions),
        ints("to.heads", &[4], &[0, 0, heads, width / heads]),
        ints("from.heads", &[3], &[0, 0, width]),
        floats("scale", &[], &[((width / heads) as f32).powf(-0.5)]),
        floats("lowest", &[], &[-3.4e38]),
    ];
    constants.into_iter().for_each(|tensor| initializer(&mut gpt.model, tensor));
    gpt.parameter("wte.weight", &[vocabulary, width]);
    gpt.parameter("wpe.weight", &[length, width]);
    gpt.op("LessOrEqual", "keys queries", "causal", vec![]);
    gpt.op("Gather", "wte.weight x", "wte.out", vec![]);
    gpt.op("Gather", "wpe.weight positions", "wpe.out", vec![]);
    gpt.op("Add", "wte.out wpe.out", "embedding", vec![]);
    let mut x = "embedding".to_string();
    for layer in 0..layers {
        x = gpt.block(&format!("h.{layer}"), &x, size);
    }
    gpt.norm("ln_f", &x, width);
    gpt.op("Transpose", "wte.weight", "wte.turned", vec![int_list("perm", vec![1, 0])]);
    gpt.op("MatMul", "ln_f.out wte.turned", "logits", vec![]);
    output(&mut gpt.model, "logits");
    // Epsilon is that of GPT-2.
    for node in &mut graph(&mut gpt.model).node {
        if node.op_type == "LayerNormalization" {
            node.attribute.push(float("epsilon", 1e-5));
        }
    }
    gpt.model
}

#[test]
#[ignore = "`tests/gpu.sh --build` writes the jobs"]
fn jobs_are_written() {
    let folder = std::env::var(FOLDER).unwrap_or_else(|_| panic!("{FOLDER} names no folder"));
    for size in &SIZES {
        let here = Path::new(&folder).join(size.name);
        std::fs::create_dir_all(&here).unwrap();
        std::fs::write(here.join("model.onnx"), gpt(size).encode_to_vec()).unwrap();
        let spec = format!(
            "mesh dp=1\nbatch {}\nloss cross_entropy logits=logits labels=y\noptimizer adamw lr=3e-4 weight_decay=0.1 \
             decay=matrices\nprecision compute=bf16 gradients=bf16\ninit \"*\" auto\n",
            size.batch
        );
        std::fs::write(here.join("job.shard"), spec).unwrap();
        let mut random = Random(31);
        let samples = BATCHES * size.batch as usize;
        let mut tokens = || {
            let all =
                (0..samples * size.length as usize).flat_map(|_| (random.below(size.vocabulary as usize) as i64).to_le_bytes());
            Tensor { dtype: DType::I64, shape: vec![samples as u64, size.length as u64], bytes: all.collect() }
        };
        let arrays = BTreeMap::from([("x".to_string(), tokens()), ("y".to_string(), tokens())]);
        write_npz(&here.join("data.npz"), &arrays).unwrap_or_else(|e| panic!("{e:?}"));
    }
    told(&format!("{} jobs", SIZES.len()));
}
