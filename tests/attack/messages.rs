//! Mutants of models that are well-formed messages: other ops, names, attributes, types, shapes and
//! elements.

use prost::Message;
use shardc_testkit::random::{Random, damaged};
use tract_onnx::pb;
use tract_onnx::pb::tensor_shape_proto::dimension::Value;
use tract_onnx::pb::type_proto::Value as Kind;

/// Numbers that few have thought of.
const NUMBERS: [i64; 14] = [0, 1, -1, 2, -2, 3, 7, 64, 1 << 20, 1 << 31, 1 << 40, i64::MAX, i64::MIN, i64::MIN + 1];

/// A number, half of the time a small one.
fn number(random: &mut Random) -> i64 {
    if random.below(2) == 0 { random.below(8) as i64 - 2 } else { NUMBERS[random.below(NUMBERS.len())] }
}

/// The model in `bytes` with a few changes, some of them taken from the one in `other`.
pub fn mutant(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let (Ok(mut model), Ok(other)) = (pb::ModelProto::decode(bytes), pb::ModelProto::decode(other)) else {
        return damaged(bytes, random);
    };
    let theirs = other.graph.unwrap_or_default();
    for _ in 0..[1, 1, 2, 4][random.below(4)] {
        match random.below(16) {
            0 => model.opset_import.iter_mut().for_each(|set| set.version = 6 + random.below(19) as i64),
            1 => {
                let name = random.pick(&theirs.node).map_or_else(|| "f".to_string(), |node| node.op_type);
                let function = function(&name, &theirs);
                model.functions.push(function);
            }
            2 if !model.functions.is_empty() => {
                let at = random.below(model.functions.len());
                let function = &mut model.functions[at];
                let mut inner = pb::GraphProto { node: std::mem::take(&mut function.node), ..Default::default() };
                change(&mut inner, &theirs, random);
                function.node = inner.node;
            }
            _ => change(model.graph.get_or_insert_default(), &theirs, random),
        }
    }
    model.encode_to_vec()
}

/// A function of the name of an op, whose body is a graph's.
fn function(name: &str, graph: &pb::GraphProto) -> pb::FunctionProto {
    pb::FunctionProto {
        name: Some(name.to_string()),
        input: graph.input.iter().map(|input| input.name.clone()).collect(),
        output: graph.output.iter().map(|output| output.name.clone()).collect(),
        node: graph.node.clone(),
        ..Default::default()
    }
}

/// Changes one thing of `graph`.
fn change(graph: &mut pb::GraphProto, theirs: &pb::GraphProto, random: &mut Random) {
    let names = names(graph);
    let name = |random: &mut Random| random.pick(&names).unwrap_or_default();
    let at = random.below(graph.node.len());
    match random.below(12) {
        0 => {
            if let Some(tensor) = random.pick(&theirs.initializer) {
                graph.initializer.push(tensor);
            }
        }
        1 => {
            let at = random.below(graph.output.len().max(1));
            let output = pb::ValueInfoProto { name: name(random), ..Default::default() };
            if random.below(2) == 0 || graph.output.is_empty() { graph.output.push(output) } else { graph.output[at] = output }
        }
        2 => {
            if let Some(input) = random.pick(&theirs.input) {
                graph.input.push(input);
            }
        }
        3 | 4 => {
            let at = random.below(graph.initializer.len());
            graph.initializer.get_mut(at).into_iter().for_each(|tensor| change_tensor(tensor, random));
        }
        5 => {
            let at = random.below(graph.input.len());
            graph.input.get_mut(at).into_iter().for_each(|input| change_type(input, random));
        }
        6 => {
            if let Some(mut node) = random.pick(&theirs.node) {
                node.input.iter_mut().for_each(|input| *input = name(random));
                graph.node.insert(at, node);
            }
        }
        _ if graph.node.is_empty() => {}
        7 => match random.below(3) {
            0 => drop(graph.node.remove(at)),
            1 => graph.node.insert(at, graph.node[at].clone()),
            _ => {
                let to = random.below(graph.node.len());
                graph.node.swap(at, to);
            }
        },
        _ => {
            let op = random.pick(&theirs.node).map_or_else(String::new, |node| node.op_type);
            let new = name(random);
            change_node(&mut graph.node[at], op, new, theirs, random);
        }
    }
}

/// Every name of a value.
fn names(graph: &pb::GraphProto) -> Vec<String> {
    let declared = graph.input.iter().map(|input| &input.name).chain(graph.initializer.iter().map(|tensor| &tensor.name));
    declared.chain(graph.node.iter().flat_map(|node| &node.output)).cloned().collect()
}

fn change_node(node: &mut pb::NodeProto, op: String, name: String, theirs: &pb::GraphProto, random: &mut Random) {
    let (input, output) = (random.below(node.input.len()), random.below(node.output.len()));
    match random.below(9) {
        0 => node.op_type = op,
        1 => node.input.push(name),
        2 if !node.input.is_empty() => node.input[input] = name,
        3 if !node.input.is_empty() => drop(node.input.remove(input)),
        4 if !node.output.is_empty() => node.output[output] = name,
        5 => {
            let attributes: Vec<pb::AttributeProto> = theirs.node.iter().flat_map(|node| node.attribute.clone()).collect();
            node.attribute.extend(random.pick(&attributes));
        }
        6 if !node.input.is_empty() => node.input[input].clear(),
        _ => {
            let at = random.below(node.attribute.len());
            node.attribute.get_mut(at).into_iter().for_each(|attribute| change_attribute(attribute, theirs, random));
        }
    }
}

fn change_attribute(attribute: &mut pb::AttributeProto, theirs: &pb::GraphProto, random: &mut Random) {
    let at = random.below(attribute.ints.len());
    match random.below(8) {
        0 => attribute.i = number(random),
        1 => attribute.f = [0.0, -1.0, 1e-30, 1e30, f32::NAN, f32::INFINITY][random.below(6)],
        2 if !attribute.ints.is_empty() => attribute.ints[at] = number(random),
        3 if !attribute.ints.is_empty() => drop(attribute.ints.remove(at)),
        4 => attribute.ints.push(number(random)),
        5 => attribute.s = damaged(&attribute.s, random),
        6 => {
            if let Some(tensor) = &mut attribute.t {
                change_tensor(tensor, random);
            } else if let Some(inner) = &mut attribute.g {
                change(inner, theirs, random);
            } else {
                attribute.i = number(random);
            }
        }
        _ => attribute.r#type = random.below(15) as i32,
    }
}

fn change_tensor(tensor: &mut pb::TensorProto, random: &mut Random) {
    let at = random.below(tensor.dims.len());
    match random.below(9) {
        0 if !tensor.dims.is_empty() => tensor.dims[at] = number(random),
        1 => tensor.dims.push(number(random)),
        2 if !tensor.dims.is_empty() => drop(tensor.dims.remove(at)),
        3 => tensor.data_type = random.below(24) as i32,
        4 => tensor.int64_data.push(number(random)),
        5 => tensor.raw_data.clear(),
        6 => tensor.data_location = Some(random.below(3) as i32),
        7 if tensor.raw_data.len() >= 8 => {
            let at = random.below(tensor.raw_data.len() / 8) * 8;
            tensor.raw_data[at..at + 8].copy_from_slice(&number(random).to_le_bytes());
        }
        _ => tensor.raw_data = damaged(&tensor.raw_data, random),
    }
}

fn change_type(input: &mut pb::ValueInfoProto, random: &mut Random) {
    let Some(Kind::TensorType(tensor)) = input.r#type.as_mut().and_then(|ty| ty.value.as_mut()) else { return };
    let shape = tensor.shape.get_or_insert_default();
    let at = random.below(shape.dim.len());
    match random.below(6) {
        0 => tensor.elem_type = random.below(24) as i32,
        1 => shape.dim.push(Default::default()),
        2 if !shape.dim.is_empty() => drop(shape.dim.remove(at)),
        3 => tensor.shape = None,
        _ => {
            if let Some(dim) = shape.dim.get_mut(at) {
                dim.value = Some(Value::DimValue(number(random)));
            }
        }
    }
}
