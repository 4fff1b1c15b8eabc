//! Small files in which the ways to one thing double from node to node, or that name one thing
//! over and over.

use super::case::Case;
use super::{DATA_COMMANDS, MODEL_COMMANDS};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use prost::Message;
use shardc_testkit::onnx::{floats, initializer, input, int, ints, model, node, output, weight};
use std::io::Write;
use std::sync::Arc;
use tract_onnx::pb::ModelProto;
use tract_onnx::pb::tensor_proto::DataType;

const SPEC: &str = "batch 4\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for (name, model, lines) in [
        ("a ladder of sums", sums(), "mesh tp=2\nshard \"w\" [-, (4|2)*tp]\n"),
        ("a ladder of slices", slices(), "mesh tp=2\ninit \"v\" auto\n"),
        ("a large prime", prime(), "mesh tp=2\ntensor axis=tp\n"),
    ] {
        let model = Arc::new(model.encode_to_vec());
        let spec = Arc::new(format!("{lines}{SPEC}").into_bytes());
        for command in &MODEL_COMMANDS[1..] {
            let files = vec![("model.onnx", Some(model.clone())), ("job.shard", Some(spec.clone()))];
            cases.push(Case::with(name, files, command));
        }
    }
    let shared = Arc::new(shared_entries());
    cases.extend(DATA_COMMANDS.iter().map(|command| Case::of("entries that share bytes", "data.npz", shared.clone(), command)));
    cases
}

/// `y = x w`, for a `w` of 3 x 6 that `other` makes something of.
fn behind(other: impl Fn(&mut ModelProto) -> String) -> ModelProto {
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 3]);
    initializer(&mut m, weight("w", &[3, 6], 1));
    let other = other(&mut m);
    node(&mut m, "MatMul", &format!("x {other}"), "y", vec![]);
    output(&mut m, "y");
    m
}

/// Each adds the one before it to itself.
fn sums() -> ModelProto {
    behind(|m| {
        (0..60).fold("w".to_string(), |last, at| {
            node(m, "Add", &format!("{last} {last}"), &format!("w{at}"), vec![]);
            format!("w{at}")
        })
    })
}

/// Each takes the one before it apart, and joins its parts.
fn slices() -> ModelProto {
    behind(|m| {
        for (name, at) in [("zero", 0), ("one", 1), ("two", 2), ("three", 3)] {
            initializer(m, ints(name, &[1], &[at]));
        }
        initializer(m, floats("v", &[2], &[0.5, -0.5]));
        let last = (0..60).fold("v".to_string(), |last, at| {
            node(m, "Slice", &format!("{last} zero one zero"), &format!("a{at}"), vec![]);
            node(m, "Slice", &format!("{last} one two zero"), &format!("b{at}"), vec![]);
            node(m, "Concat", &format!("a{at} b{at}"), &format!("v{at}"), vec![int("axis", 0)]);
            format!("v{at}")
        });
        node(m, "Tile", &format!("{last} three"), "wide", vec![]);
        node(m, "Add", "w wide", "sum", vec![]);
        "sum".to_string()
    })
}

/// Products that sum over so many that no mesh splits them.
fn prime() -> ModelProto {
    const PRIME: i64 = (1 << 45) - 55;
    let mut m = model(20);
    input(&mut m, "x", DataType::Float, &[-1, 1]);
    initializer(&mut m, weight("w", &[1, 2], 1));
    initializer(&mut m, ints("wide", &[2], &[1, PRIME]));
    initializer(&mut m, ints("tall", &[2], &[PRIME, 1]));
    node(&mut m, "Expand", "x wide", "many", vec![]);
    node(&mut m, "Expand", "w tall", "p", vec![]);
    let last = (0..200).fold("many_0".to_string(), |last, at| {
        node(&mut m, "MatMul", "many p", &format!("many_{at}"), vec![]);
        node(&mut m, "Add", &format!("{last} many_{at}"), &format!("sum_{at}"), vec![]);
        format!("sum_{at}")
    });
    node(&mut m, "Relu", &last, "y", vec![]);
    output(&mut m, "y");
    m
}

/// An archive of 400 arrays of 8 MiB, all of the same compressed bytes.
fn shared_entries() -> Vec<u8> {
    const ELEMENTS: usize = 2 << 20;
    let header = format!("{:<117}\n", format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({ELEMENTS},), }}"));
    let mut array = DeflateEncoder::new(vec![], Compression::best());
    let mut sum = flate2::Crc::new();
    for part in [&b"\x93NUMPY\x01\x00\x76\x00"[..], header.as_bytes()].into_iter().chain([&[0; 4096][..]; ELEMENTS / 1024]) {
        array.write_all(part).expect("memory takes it");
        sum.update(part);
    }
    let array = array.finish().expect("memory takes it");
    // Version, flags, method, time, date, checksum, sizes.
    let facts = |name: &str| {
        let mut facts = [20_u16, 0, 8, 0, 0x21].map(u16::to_le_bytes).concat();
        facts.extend([sum.sum(), array.len() as u32, sum.amount()].map(u32::to_le_bytes).concat());
        facts.extend((name.len() as u16).to_le_bytes());
        facts.extend([0; 2]);
        facts
    };
    let mut bytes = [b"PK\x03\x04", &facts("x.npy")[..], b"x.npy", &array].concat();
    let start = bytes.len() as u32;
    for at in 0..400 {
        let name = if at == 0 { "x.npy".to_string() } else { format!("x{at}.npy") };
        bytes.extend([b"PK\x01\x02\x14\x00", &facts(&name)[..], &[0; 14], name.as_bytes()].concat());
    }
    let size = bytes.len() as u32 - start;
    bytes
        .extend([b"PK\x05\x06\x00\x00\x00\x00\x90\x01\x90\x01", &size.to_le_bytes()[..], &start.to_le_bytes(), &[0; 2]].concat());
    bytes
}
