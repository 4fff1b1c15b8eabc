//! The elementwise program of a kernel: its operands read, its instructions in order.

use crate::generated::{Accesses, Memory, Parameter};
use crate::space::{self, Space};
use crate::text::{Text, constant, conversion, element, number, register, sum, times, to_register};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::Map;
use shardc_ir::position::{Offset, Origin, OriginDigit};
use shardc_ir::scalar::{Binary, Instr, Rounding};

/// Work on numbers that are the same for every element from which on a block does it once, in
/// additions.
const SHARED_WORK: u32 = 12;

/// The program of a map over a joined space. Lines that it writes use the indices `c0`, `c1`... of
/// the space's dimensions.
#[derive(Debug)]
pub struct Body<'a> {
    map: &'a Map,
    /// The joined space. Its operands are the inputs, the indices that the program reads, and then
    /// those that were given.
    pub space: Space,
    /// The name of each input's parameter.
    names: Vec<String>,
    /// The registers that are indices, with the origin and the number that offsets it.
    indices: Vec<(usize, &'a Origin, String)>,
    /// Numbers that the launch is given.
    pub numbers: Vec<Offset>,
    /// Neighbouring elements that a thread computes.
    pub lanes: u64,
    /// For each input the register, or the neighbours, that hold it already.
    pub held: Vec<Option<String>>,
    /// Whether each result stays in a register `v` and its number, for what comes behind.
    pub hands_on: bool,
    /// Whether a block computes once what is dear and the same everywhere.
    pub is_shared: bool,
}

/// On what a register depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Varies {
    Nowhere,
    WithThread,
    WithElement,
}

impl<'a> Body<'a> {
    /// The body over the dimensions of `map` in `order`, each in a group; `names` of the inputs,
    /// and strides of other operands over the space of `map`.
    pub fn new(map: &'a Map, order: &[usize], groups: &[usize], names: Vec<String>, others: &[Vec<i64>]) -> Body<'a> {
        let mut strides: Vec<Vec<i64>> = map.inputs.iter().map(|input| input.strides.clone()).collect();
        let mut indices = vec![];
        let mut numbers = vec![];
        for (at, instr) in map.program.code.iter().enumerate() {
            let Instr::Index(d) = instr else { continue };
            let Some((_, origin)) = map.origins.iter().find(|(dim, _)| dim == d) else { continue };
            strides.push((0..map.shape.len()).map(|dim| i64::from(dim == *d as usize)).collect());
            let offset = number(&origin.offset, &mut numbers);
            indices.push((map.inputs.len() + at, origin, offset));
        }
        strides.extend_from_slice(others);
        let permuted: Vec<Vec<i64>> = strides.iter().map(|own| order.iter().map(|d| own[*d]).collect()).collect();
        let shape: Vec<u64> = order.iter().map(|d| map.shape[*d]).collect();
        let (space, held) = (Space::joined(&shape, groups, &permuted), vec![None; map.inputs.len()]);
        Body { map, space, names, indices, numbers, lanes: 1, held, hands_on: false, is_shared: true }
    }

    /// The types of the results.
    pub fn outputs(&self) -> &'a [DType] {
        &self.map.outputs
    }

    /// Calls the numbers that the launch is given `n` and a count from `first` on.
    pub fn number_from(&mut self, first: usize) {
        let given = self.indices.iter_mut().filter(|(_, origin, _)| !origin.offset.terms.is_empty());
        (first..).zip(given).for_each(|(number, (.., name))| *name = format!("n{number}"));
    }

    /// The strides of an operand over the joined space.
    pub fn strides(&self, operand: usize) -> &[i64] {
        &self.space.strides[operand]
    }

    /// The strides of the operand that was given as other `at`.
    pub fn other(&self, at: usize) -> &[i64] {
        self.strides(self.map.inputs.len() + self.indices.len() + at)
    }

    /// The most neighbouring elements that a thread may compute with accesses of 4 to 16 bytes,
    /// where the results are of `outputs`; 1 where there are none.
    pub fn most_lanes(&self, outputs: &[DType]) -> u64 {
        let Some((last, size)) = self.space.sizes.len().checked_sub(1).map(|last| (last, self.space.sizes[last])) else {
            return 1;
        };
        let inputs = || self.map.inputs.iter().enumerate().map(|(at, input)| (input, self.strides(at)));
        let neighbours = inputs().filter(|(_, strides)| strides[last] == 1).map(|(input, _)| input.dtype);
        // Two accesses for the lanes of one operand would each leave half of every sector.
        let bytes: Vec<u64> = neighbours.chain(outputs.iter().copied()).map(DType::bytes).collect();
        let fits = |lanes: &u64| {
            let rows = |strides: &[i64]| strides[..last].iter().all(|stride| stride.unsigned_abs() % lanes == 0);
            size % lanes == 0 && inputs().all(|(_, strides)| strides[last] == 0 || (strides[last] == 1 && rows(strides)))
        };
        [8, 4, 2]
            .into_iter()
            .filter(|lanes| bytes.iter().all(|bytes| (4..=16).contains(&(lanes * bytes))))
            .find(fits)
            .unwrap_or(1)
    }

    /// The type of an index: of 32 bits where no element is further away.
    pub fn index_type(&self) -> &'static str {
        let reach = |strides: &Vec<i64>| -> i128 {
            self.space.sizes.iter().zip(strides).map(|(size, stride)| i128::from(*size) * i128::from(*stride)).sum()
        };
        let total: i128 = self.space.sizes.iter().map(|size| i128::from(*size)).product();
        let far = self.space.strides.iter().map(reach).chain([total]).max().unwrap_or(0);
        if far < 1 << 31 { "u32" } else { "u64" }
    }

    /// Bytes of shared memory for what a block computes once.
    pub fn shared(&self) -> u32 {
        (self.once().len() * 8) as u32
    }

    /// Writes what a block computes once; every thread of it must come by.
    pub fn write_once(&self, text: &mut Text) {
        let once = self.once();
        if once.is_empty() {
            return;
        }
        let kind = register(self.map.compute);
        text.line("SHARED(shared);");
        text.line(format!("{kind}* once = ({kind}*)shared;"));
        text.line("if (threadIdx.x == 0) {");
        let levels = self.levels();
        for at in (0..self.map.inputs.len()).filter(|at| levels[*at] == Varies::Nowhere) {
            text.line(self.load(at));
        }
        for (at, instr) in self.map.program.code.iter().enumerate() {
            let at = self.map.inputs.len() + at;
            if levels[at] == Varies::Nowhere && !matches!(instr, Instr::Const(_)) {
                text.line(format!("{kind} r{at} = {};", self.expression(instr)));
            }
        }
        for (place, at) in once.iter().enumerate() {
            text.line(format!("once[{place}] = r{at};"));
        }
        text.line("}");
        text.line("BARRIER();");
        for (place, at) in once.iter().enumerate() {
            text.line(format!("{kind} r{at} = once[{place}];"));
        }
    }

    /// Writes the program for `lanes` neighbouring elements. `each` writes what becomes of the
    /// results of one of them, given their registers; where there are several, it is element `e`.
    pub fn write(&self, text: &mut Text, each: impl FnOnce(&mut Text, &[String])) {
        let (inputs, kind) = (self.map.inputs.len(), register(self.map.compute));
        let levels = self.levels();
        let once = self.once();
        let is_done = |at: usize| !once.is_empty() && at >= inputs && levels[at] == Varies::Nowhere;
        let used = self.used(&is_done);
        for at in (0..inputs).filter(|at| used[*at]) {
            if levels[at] == Varies::WithElement {
                let offset = space::offset(self.strides(at));
                let read = format!("read<{}>({} + {offset})", self.lanes, self.names[at]);
                text.line(format!("auto x{at} = {};", self.held[at].as_ref().unwrap_or(&read)));
            } else {
                text.line(self.load(at));
            }
        }
        let write = |text: &mut Text, wanted: &dyn Fn(Varies) -> bool| {
            for (at, instr) in self.map.program.code.iter().enumerate() {
                let at = inputs + at;
                if wanted(levels[at]) && used[at] && !is_done(at) && !matches!(instr, Instr::Const(_)) {
                    text.line(format!("{kind} r{at} = {};", self.indexed(at).unwrap_or_else(|| self.expression(instr))));
                }
            }
        };
        write(text, &|varies| varies != Varies::WithElement);
        let results: Vec<String> = self.map.program.outputs.iter().map(|at| self.name(*at as usize)).collect();
        if self.lanes == 1 {
            each(text, &results);
            return;
        }
        text.line("#pragma unroll");
        text.line(format!("for (int e = 0; e < {}; e++) {{", self.lanes));
        for at in (0..inputs).filter(|at| used[*at] && levels[*at] == Varies::WithElement) {
            text.line(format!("{kind} r{at} = {}(x{at}.at[e]);", to_register(self.map.compute)));
        }
        write(text, &|varies| varies == Varies::WithElement);
        each(text, &results);
        text.line("}");
    }

    /// Writes the program, and its results as elements from `at` on of `y` and a number, counted
    /// from `first`.
    pub fn write_elements(&self, text: &mut Text, first: usize, at: &str) {
        let (lanes, outputs) = (self.lanes, self.outputs());
        if lanes > 1 {
            let declared = |(result, dtype): (usize, &DType)| format!("vec<{}, {lanes}> v{};", element(*dtype), first + result);
            text.lines(outputs.iter().enumerate().map(declared));
        }
        self.write(text, |text, results| {
            for (result, value) in results.iter().enumerate() {
                let (number, stored) = (first + result, self.stored(result, value));
                match (lanes > 1, self.hands_on) {
                    (true, _) => text.line(format!("v{number}.at[e] = {stored};")),
                    (_, false) => text.line(format!("y{number}[{at}] = {stored};")),
                    (_, true) => {
                        text.line(format!("{} v{number} = {stored};", element(outputs[result])));
                        text.line(format!("y{number}[{at}] = v{number};"));
                    }
                }
            }
        });
        if lanes > 1 {
            text.lines((first..first + outputs.len()).map(|result| format!("write(y{result} + {at}, v{result});")));
        }
    }

    /// The registers that the results need where some are known already.
    fn used(&self, is_done: &dyn Fn(usize) -> bool) -> Vec<bool> {
        let (inputs, program) = (self.map.inputs.len(), &self.map.program);
        let mut used = vec![false; program.registers()];
        program.outputs.iter().for_each(|at| used[*at as usize] = true);
        for (at, instr) in program.code.iter().enumerate().rev() {
            if used[inputs + at] && !is_done(inputs + at) {
                operands(instr).into_iter().for_each(|operand| used[operand] = true);
            }
        }
        used
    }

    /// On what each register depends.
    fn levels(&self) -> Vec<Varies> {
        let last = self.space.sizes.len().saturating_sub(1);
        let of = |strides: &[i64]| match strides {
            strides if self.lanes > 1 && strides[last] != 0 => Varies::WithElement,
            strides if strides.iter().any(|stride| *stride != 0) => Varies::WithThread,
            _ => Varies::Nowhere,
        };
        let mut levels: Vec<Varies> = (0..self.map.inputs.len()).map(|at| of(self.strides(at))).collect();
        for (at, instr) in self.map.program.code.iter().enumerate() {
            levels.push(match self.index_operand(self.map.inputs.len() + at) {
                // An index may come with the rank's position, so it is no constant of the text.
                Some(operand) => of(self.strides(operand)).max(Varies::WithThread),
                None => operands(instr).into_iter().map(|operand| levels[operand]).max().unwrap_or(Varies::Nowhere),
            });
        }
        levels
    }

    /// The registers that a block computes once: dear, the same everywhere, and read by others.
    fn once(&self) -> Vec<usize> {
        let (inputs, program, levels) = (self.map.inputs.len(), &self.map.program, self.levels());
        let nowhere = |at: usize| levels[at] == Varies::Nowhere;
        let cost = |instr: &Instr| match instr {
            Instr::Unary(f, _) => f.facts().cost,
            Instr::Binary(f, ..) => f.facts().cost,
            _ => 0,
        };
        let work: u32 = program.code.iter().enumerate().filter(|(at, _)| nowhere(inputs + at)).map(|(_, i)| cost(i)).sum();
        if work < SHARED_WORK || !self.is_shared {
            return vec![];
        }
        let mut read = vec![false; program.registers()];
        program.outputs.iter().for_each(|at| read[*at as usize] = true);
        for (_, instr) in program.code.iter().enumerate().filter(|(at, _)| !nowhere(inputs + at)) {
            operands(instr).into_iter().for_each(|operand| read[operand] = true);
        }
        let computed = |at: &usize| !matches!(program.code[at - inputs], Instr::Const(_));
        (inputs..program.registers()).filter(|at| read[*at] && nowhere(*at)).filter(computed).collect()
    }

    /// A line that reads an input whose value does not depend on the element.
    fn load(&self, at: usize) -> String {
        let (kind, convert) = (register(self.map.compute), to_register(self.map.compute));
        match &self.held[at] {
            Some(register) => format!("{kind} r{at} = {convert}({register});"),
            None => format!("{kind} r{at} = {convert}({}[{}]);", self.names[at], space::offset(self.strides(at))),
        }
    }

    /// The operand whose strides are those of the index in register `at`.
    fn index_operand(&self, at: usize) -> Option<usize> {
        self.indices.iter().position(|(register, ..)| *register == at).map(|found| self.map.inputs.len() + found)
    }

    /// The value of a register that is an index.
    fn indexed(&self, at: usize) -> Option<String> {
        let operand = self.index_operand(at)?;
        let (_, origin, offset) = &self.indices[operand - self.map.inputs.len()];
        let last = self.space.sizes.len().saturating_sub(1);
        let first = space::offset(self.strides(operand));
        let goes_on = self.lanes > 1 && self.strides(operand)[last] != 0;
        let local = if goes_on { format!("{first} + e") } else { first.clone() };
        let size: u64 = self.space.sizes.iter().zip(self.strides(operand)).filter(|(_, s)| **s != 0).map(|(n, _)| *n).product();
        let part = |d: &OriginDigit| {
            let part = if d.divisor == 1 { format!("({local})") } else { format!("({local}) / {}", d.divisor) };
            if d.size * d.divisor >= size { part } else { format!("{part} % {}", d.size) }
        };
        let digit = |d: &OriginDigit| format!("(i64)({}){}", part(d), times(d.stride));
        // A quarter of the time of a number of 64 bits.
        if let ([d], "0ll", "u32", "float") = (&origin.digits[..], offset.as_str(), self.index_type(), register(self.map.compute))
            && d.stride == 1
        {
            // Conversions are slow; a float holds sums of whole numbers exactly up to 2^24.
            let adds = goes_on && d.divisor == 1 && d.size >= size && size <= 1 << 24;
            let whole = if adds { format!("to_f32((u32)({first})) + (float)e") } else { format!("to_f32((u32)({}))", part(d)) };
            return Some(whole);
        }
        let digits = origin.digits.iter().map(digit);
        let offset = (offset != "0ll").then(|| offset.clone());
        let global = sum(offset.into_iter().chain(digits).collect());
        Some(format!("{}({global})", to_register(self.map.compute)))
    }

    /// A register where it is read: constants stand for themselves.
    fn name(&self, at: usize) -> String {
        match at.checked_sub(self.map.inputs.len()).map(|instr| &self.map.program.code[instr]) {
            Some(Instr::Const(value)) => constant(self.map.compute, *value),
            _ => format!("r{at}"),
        }
    }

    fn expression(&self, instr: &Instr) -> String {
        let name = |at: u16| self.name(at as usize);
        let is_float = self.map.compute.is_float();
        match *instr {
            Instr::Const(value) => constant(self.map.compute, value),
            Instr::Index(_) => "0".into(),
            Instr::Unary(f, a) => format!("{}_({})", f.name(), name(a)),
            Instr::Binary(Binary::Add, a, b) if is_float => format!("{} + {}", name(a), name(b)),
            Instr::Binary(Binary::Sub, a, b) if is_float => format!("{} - {}", name(a), name(b)),
            Instr::Binary(Binary::Mul, a, b) if is_float => format!("{} * {}", name(a), name(b)),
            Instr::Binary(Binary::Div, a, b) if is_float => format!("{} / {}", name(a), name(b)),
            Instr::Binary(f, a, b) => format!("{}_({}, {})", f.name(), name(a), name(b)),
            Instr::Select(a, b, c) => format!("{} != 0 ? {} : {}", name(a), name(b), name(c)),
            Instr::Round(Rounding::Bf16, a) => format!("round_bf16({})", name(a)),
            Instr::Round(Rounding::F16, a) => format!("round_f16({})", name(a)),
            Instr::Round(Rounding::Tf32, a) => format!("round_tf32({})", name(a)),
        }
    }

    /// The parameters of the inputs that are not in place, with their bytes.
    pub fn parameters(&self, reads: &[u64], in_place: &[Option<usize>]) -> Vec<Parameter> {
        let own = |at: &usize| in_place.get(*at).copied().flatten().is_none();
        let parameter = |at: usize| Parameter {
            name: self.names[at].clone(),
            memory: Memory::Read(at),
            bytes: reads[at] * self.map.inputs[at].dtype.bytes(),
            is_read: true,
            is_written: false,
            whole: false,
        };
        (0..self.map.inputs.len()).filter(own).map(parameter).collect()
    }

    /// The elements of input `at` that a launch reads.
    pub fn accesses(&self, at: usize) -> Accesses {
        accesses(&self.space, self.strides(at), self.lanes)
    }

    /// The conversion of a result to its type in memory.
    pub fn stored(&self, output: usize, value: &str) -> String {
        format!("{}({value})", conversion(self.map.outputs[output]))
    }
}

/// The elements under `strides` over `space`, `lanes` neighbours at a time.
pub fn accesses(space: &Space, strides: &[i64], lanes: u64) -> Accesses {
    let last = space.sizes.len().saturating_sub(1);
    let mut width = 1;
    let mut terms = vec![];
    for (d, (size, stride)) in space.sizes.iter().zip(strides).enumerate().filter(|(_, (_, stride))| **stride != 0) {
        if d == last && lanes > 1 && *stride == 1 {
            width = lanes;
            terms.push((size / lanes, lanes as i64));
        } else {
            terms.push((*size, *stride));
        }
    }
    Accesses { width, ..Accesses::over(&terms) }
}

/// The registers that an instruction reads.
fn operands(instr: &Instr) -> Vec<usize> {
    match *instr {
        Instr::Const(_) | Instr::Index(_) => vec![],
        Instr::Unary(_, a) | Instr::Round(_, a) => vec![a as usize],
        Instr::Binary(_, a, b) => vec![a as usize, b as usize],
        Instr::Select(a, b, c) => vec![a as usize, b as usize, c as usize],
    }
}

/// A parameter's declaration.
pub fn declared(parameter: &Parameter, dtype: DType) -> String {
    let constant = if parameter.is_written { "" } else { "const " };
    format!("{constant}{}* __restrict__ {}", element(dtype), parameter.name)
}
