//! Reads a graph from its text. Types are taken as they stand: whether they follow from the ops is
//! for the verifier to say.

use super::axes::number_axes;
use super::constant::read_constant;
use super::cursor::{Cursor, Read};
use super::elsewhere::Elsewhere;
use super::sharding::{Asked, read_asked, read_sharding};
use super::value::{read_attributes, read_value};
use super::{TextError, positional};
use crate::builder::Builder;
use crate::dtype::DType;
use crate::graph::{Graph, NodeOrigin, Output, Part, Phase, State, StateId, ValueId};
use crate::mesh::Mesh;
use crate::ops::{Op, leaf};
use crate::plan::{Block, StateRole};
use crate::sharding::Sharding;
use crate::train::StateInit;
use crate::types::{Type, checked_elements};
use std::collections::{HashMap, HashSet};

/// The bytes of constants with one value everywhere that any text may ask for.
pub const FILLED: u64 = 1 << 25;

/// The graph of a text; the error names the first line that is wrong.
pub fn parse(text: &str) -> Result<Graph, TextError> {
    parse_beside(text, FILLED, &Elsewhere::default())
}

/// [`parse`] of a text whose constants with one value everywhere take up to `filled` bytes, as
/// what stands beside it lets expect. Constants that it names by a hash are those `elsewhere`.
pub fn parse_beside(text: &str, filled: u64, elsewhere: &Elsewhere) -> Result<Graph, TextError> {
    let mut lines = text.lines().enumerate().map(|(i, line)| Cursor::new(line, i + 1)).filter(|c| !c.at_end()).peekable();
    let Some(header) = lines.next() else {
        return Err(TextError { line: 1, message: "there is no graph".to_string() });
    };
    let (name, phase) = read_header(header)?;
    let mesh = match lines.next_if(|line| line.at_word("mesh")) {
        Some(line) => read_mesh(line)?,
        None => Mesh::single(),
    };
    let mut reader = Reader {
        builder: Builder::new(name, phase, mesh),
        values: HashMap::new(),
        states: HashMap::new(),
        left: filled,
        elsewhere,
    };
    for line in lines {
        reader.line(line)?;
    }
    Ok(reader.builder.finish())
}

fn read_header(mut line: Cursor<'_>) -> Read<(String, Phase)> {
    if !line.take_word("graph") {
        return line.fail("a graph begins with `graph @name  phase …`");
    }
    line.expect("@")?;
    let name = line.name()?;
    if !line.take_word("phase") {
        return line.fail("the phase is missing");
    }
    let phase = line.word()?;
    line.end()?;
    match Phase::ALL.into_iter().find(|p| p.name() == phase) {
        Some(phase) => Ok((name, phase)),
        None => line.fail(format!("there is no phase `{phase}`")),
    }
}

fn read_mesh(mut line: Cursor<'_>) -> Read<Mesh> {
    line.take_word("mesh");
    let (mut axes, mut names) = (vec![], HashSet::new());
    while !line.at_end() {
        let name = line.word()?.to_string();
        line.expect("=")?;
        let size = line.count()?;
        if size == 0 || !names.insert(name.clone()) {
            return line.fail(format!("`{name}` is empty or given twice"));
        }
        axes.push((name, size));
    }
    let mesh = match axes.pop() {
        Some((name, microbatches)) if name == crate::mesh::TIME => Mesh::new(axes, microbatches),
        _ => return line.fail("the last axis of a mesh is `time`"),
    };
    match mesh.check() {
        Ok(()) => Ok(mesh),
        Err(why) => line.fail(why),
    }
}

/// The nodes, values and states that have been read.
struct Reader<'e> {
    builder: Builder,
    values: HashMap<String, ValueId>,
    states: HashMap<String, StateId>,
    /// How many bytes one value may still fill.
    left: u64,
    elsewhere: &'e Elsewhere,
}

impl Reader<'_> {
    fn line(&mut self, mut line: Cursor<'_>) -> Read<()> {
        if line.peek() == Some('%') {
            return self.node(line);
        }
        match line.word()? {
            "state" => self.state(&mut line)?,
            "output" => {
                let name = line.string()?;
                let value = self.value(&mut line)?;
                self.builder.graph_mut().outputs.push(Output { name, value });
            }
            "update" => {
                let state = self.state_name(&mut line)?;
                line.expect("<-")?;
                let value = self.value(&mut line)?;
                self.builder.graph_mut().states[state.index()].update = Some(value);
            }
            "gradient" => {
                let state = self.state_name(&mut line)?;
                line.expect("=")?;
                let value = self.value(&mut line)?;
                self.builder.graph_mut().states[state.index()].gradient = Some(value);
            }
            word => return line.fail(format!("a line does not begin with `{word}`")),
        }
        line.end()
    }

    /// `"w1" : f32[4, 16]{-, tp}  parameter init=model`
    fn state(&mut self, line: &mut Cursor<'_>) -> Read<()> {
        let name = line.string()?;
        line.expect(":")?;
        let (ty, sharding) = self.typed(line)?;
        let word = line.word()?;
        let Some(role) = StateRole::ALL.into_iter().find(|role| role.name() == word) else {
            return line.fail(format!("there is no role `{word}`"));
        };
        if !line.take_word("init") {
            return line.fail("`init=` is missing");
        }
        line.expect("=")?;
        let init = match line.word()? {
            "model" => StateInit::Model,
            "zeros" => StateInit::Zeros,
            "ones" => StateInit::Ones,
            word @ ("normal" | "value") => {
                line.expect("(")?;
                let number = line.number()?;
                let Ok(value) = number.parse() else { return line.fail(format!("`{number}` is no number")) };
                line.expect(")")?;
                if word == "value" { StateInit::Value(value) } else { StateInit::Normal { std: value } }
            }
            word => return line.fail(format!("there is no initial value `{word}`")),
        };
        let id = StateId(self.builder.graph().states.len() as u32);
        if self.states.insert(name.clone(), id).is_some() {
            return line.fail(format!("state \"{name}\" is declared twice"));
        }
        let block = if line.take_word("block") { Some(read_block(line, &ty)?) } else { None };
        let state = State { name, ty, sharding, role, init, block, update: None, gradient: None };
        self.builder.graph_mut().states.push(state);
        Ok(())
    }

    /// `%y, %m = op attributes %a, %b : types origin`
    fn node(&mut self, mut line: Cursor<'_>) -> Read<()> {
        let (mut results, mut names) = (vec![], HashSet::new());
        loop {
            line.expect("%")?;
            let name = line.word()?.to_string();
            if self.values.contains_key(&name) || !names.insert(name.clone()) {
                return line.fail(format!("`%{name}` is defined twice"));
            }
            results.push(name);
            if !line.take(",") {
                break;
            }
        }
        line.expect("=")?;
        let draft = self.draft(&mut line)?;
        let mut operands = vec![];
        if line.peek() == Some('%') {
            operands.push(self.value(&mut line)?);
            while line.take(",") {
                operands.push(self.value(&mut line)?);
            }
        }
        line.expect(":")?;
        let types =
            if line.peek() == Some('(') { line.list("(", ")", |l| self.result(l))? } else { vec![self.result(&mut line)?] };
        if types.len() != results.len() {
            return line.fail(format!("{} results have {} types", results.len(), types.len()));
        }
        let op = match draft {
            Draft::Done(op) => op,
            Draft::Input { name, label } => leaf::Input { name, ty: types[0].ty.clone(), label }.into(),
            Draft::Constant(mut elements) => {
                let value = read_constant(&mut elements, &types[0].ty, &mut self.left, self.elsewhere)?;
                elements.expect(":")?;
                leaf::Constant { value }.into()
            }
        };
        self.builder.origin = read_origin(&mut line)?;
        line.end()?;
        self.push(op, &operands, results, types);
        Ok(())
    }

    /// The op with its attributes, up to the operands.
    fn draft<'t>(&mut self, line: &mut Cursor<'t>) -> Read<Draft<'t>> {
        let name = line.word()?;
        match name {
            "input" | "label" => return Ok(Draft::Input { name: line.string()?, label: name == "label" }),
            "state" => return Ok(Draft::Done(leaf::StateRead { state: self.state_name(line)? }.into())),
            "constant" => {
                let elements = line.clone();
                line.skip_to(":");
                return Ok(Draft::Constant(elements));
            }
            _ => {}
        }
        let first = match positional(name) {
            Some(key) => Some((key.to_string(), read_value(line)?)),
            None => None,
        };
        let mut attributes = read_attributes(line)?;
        attributes.extend(first);
        let given: Vec<String> = attributes.keys().cloned().collect();
        let mesh = &self.builder.graph().mesh;
        let op = number_axes(name, &mut attributes, mesh).and_then(|()| Op::from_text(name, attributes));
        let op = op.or_else(|why| line.fail(why))?;
        let known = op.attributes();
        match given.iter().find(|key| !known.contains_key(*key)) {
            Some(key) => line.fail(format!("`{name}` has no attribute `{key}`")),
            None => Ok(Draft::Done(op)),
        }
    }

    fn push(&mut self, op: Op, operands: &[ValueId], names: Vec<String>, results: Vec<Typed>) {
        let types = results.iter().map(|r| r.ty.clone()).collect();
        let values = self.builder.push(op, operands, types, "v");
        for ((id, name), result) in values.into_iter().zip(names).zip(results) {
            let value = &mut self.builder.graph_mut().values[id.index()];
            value.sharding = result.sharding;
            value.asked = result.asked;
            value.name = name.as_str().into();
            self.values.insert(name, id);
        }
    }

    /// `%x`, which must be defined.
    fn value(&self, line: &mut Cursor<'_>) -> Read<ValueId> {
        line.expect("%")?;
        let name = line.word()?;
        self.values.get(name).copied().map_or_else(|| line.fail(format!("`%{name}` is not defined yet")), Ok)
    }

    /// `"w1"`, which must be declared.
    fn state_name(&self, line: &mut Cursor<'_>) -> Read<StateId> {
        let name = line.string()?;
        self.states.get(&name).copied().map_or_else(|| line.fail(format!("state \"{name}\" is not declared")), Ok)
    }

    fn result(&self, line: &mut Cursor<'_>) -> Read<Typed> {
        let (ty, sharding) = self.typed(line)?;
        Ok(Typed { ty, sharding, asked: read_asked(line, &self.builder.graph().mesh)? })
    }

    /// `f32[8, 4]{dp, -} partial(sum: tp)`
    fn typed(&self, line: &mut Cursor<'_>) -> Read<(Type, Sharding)> {
        let name = line.word()?;
        let Some(dtype) = DType::from_name(name) else { return line.fail(format!("there is no element type `{name}`")) };
        let shape = line.list("[", "]", Cursor::count)?;
        if checked_elements(&shape).is_none() {
            return line.fail("the type is too large");
        }
        let sharding = read_sharding(line, &shape, &self.builder.graph().mesh)?;
        Ok((Type::new(dtype, shape), sharding))
    }
}

/// `of "w" axis=1 start=64 whole=128`, for a part of type `ty`.
fn read_block(line: &mut Cursor<'_>, ty: &Type) -> Read<Block> {
    let word = |line: &mut Cursor<'_>, word: &str| match line.take_word(word) {
        true => Ok(()),
        false => line.fail(format!("`{word}` is missing")),
    };
    word(line, "of")?;
    let of = line.string()?;
    let alias = if line.take_word("alias") { Some(line.string()?) } else { None };
    let mut numbers = [0; 3];
    for (number, name) in numbers.iter_mut().zip(["axis", "start", "whole"]) {
        word(line, name)?;
        line.expect("=")?;
        *number = line.count()?;
    }
    let [axis, start, whole] = numbers;
    let block = Block { of, alias, axis: axis as usize, start, whole };
    if block.is_inside(&ty.shape) {
        Ok(block)
    } else {
        line.fail(format!("no block of {whole} at {start} of axis {axis} is {ty}"))
    }
}

/// The text after the colon, for one result.
struct Typed {
    ty: Type,
    sharding: Sharding,
    asked: Asked,
}

/// An op, or what is known of it before its type.
enum Draft<'t> {
    Done(Op),
    Input { name: String, label: bool },
    Constant(Cursor<'t>),
}

/// `@h.0.attn backward reason="for add" line=7`, any of them.
fn read_origin(line: &mut Cursor<'_>) -> Read<NodeOrigin> {
    let mut origin = NodeOrigin::default();
    if line.take("@") {
        origin.scope = Some(line.name()?.into());
    }
    origin.part = [Part::Backward, Part::Update].into_iter().find(|part| line.take_word(part.name())).unwrap_or_default();
    if line.take_word("stage") {
        line.expect("=")?;
        origin.stage = Some(line.ordinal()?);
    }
    if line.take_word("reason") {
        line.expect("=")?;
        origin.reason = Some(line.string()?.into());
    }
    if line.take_word("line") {
        line.expect("=")?;
        origin.spec_line = Some(line.ordinal()?);
    }
    Ok(origin)
}
