//! Map: plain loops, random instances, other sizes.

use super::draw::Draw;
use super::scalar::{binary, unary};
use super::sizes::scaled;
use super::{Judged, Try, at, indices};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Kernel, Map, MapInput};
use shardc_ir::mesh::AxisId;
use shardc_ir::position::*;
use shardc_ir::scalar::unary::EVERYWHERE;
use shardc_ir::scalar::{Binary, Instr, ScalarProgram, Unary};

impl Judged for Map {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], coordinates: &[u64]) {
        for (position, index) in indices(&self.shape).iter().enumerate() {
            for (o, value) in element(self, reads, index, coordinates).into_iter().enumerate() {
                out[o][position] = value;
            }
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        let old = self.shape.clone();
        self.shape = old.iter().copied().map(to).collect();
        for input in &mut self.inputs {
            let dims: Vec<_> = (0..old.len()).map(|d| (old[d], self.shape[d], input.strides[d])).collect();
            input.strides = scaled(&dims);
        }
    }

    fn instances(each: &mut Try<'_>) {
        let mut random = Draw::new(1);
        for case in 0..1500 {
            let compute = if case % 2 == 0 { DType::F64 } else { DType::F32 };
            let shape = random.shape();
            let kernel = Kernel::Map(drawn(&mut random, compute, shape));
            let reads = random.operands(&kernel);
            each(&kernel, &reads, if compute == DType::F64 { 1e-12 } else { 1e-5 });
        }
    }
}

/// The results of one element.
pub(super) fn element(map: &Map, reads: &[Vec<f64>], index: &[u64], coordinates: &[u64]) -> Vec<f64> {
    let mut registers: Vec<f64> = map.inputs.iter().zip(reads).map(|(input, data)| data[at(index, &input.strides)]).collect();
    for instr in &map.program.code {
        let r = |i: u16| registers[i as usize];
        let value = match *instr {
            Instr::Const(value) => value,
            Instr::Index(d) => {
                let origin = map.origins.iter().find(|(of, _)| *of == d).map(|(_, origin)| origin);
                origin.map_or(index[d as usize] as i64, |origin| origin.global(index[d as usize], coordinates)) as f64
            }
            Instr::Unary(f, a) => unary(f, r(a)),
            Instr::Binary(f, a, b) => binary(f, r(a), r(b)),
            Instr::Round(to, a) => to.round_f64(r(a)),
            Instr::Select(a, b, c) => {
                if r(a) != 0.0 {
                    r(b)
                } else {
                    r(c)
                }
            }
        };
        registers.push(value);
    }
    map.program.outputs.iter().map(|r| registers[*r as usize]).collect()
}

/// Functions that take any number.
fn tame() -> Vec<Unary> {
    Unary::ALL.into_iter().filter(|f| f.facts().domain == EVERYWHERE).collect()
}

const BINARY: [Binary; 11] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Max,
    Binary::Min,
    Binary::Eq,
    Binary::Lt,
    Binary::Le,
    Binary::And,
    Binary::Or,
    Binary::Xor,
];

/// A random elementwise kernel. Steps of a function (floor, comparisons) are only taken of exact
/// values: of inputs.
pub fn drawn(random: &mut Draw, compute: DType, shape: Vec<u64>) -> Map {
    let inputs: Vec<MapInput> = (0..1 + random.below(3))
        .map(|_| {
            let dtype = if random.below(4) == 0 { random.pick(&DType::ALL) } else { compute };
            let dtype = if compute == DType::F32 && dtype == DType::F64 { DType::F32 } else { dtype };
            let mut strides = random.permuted_strides(&shape);
            if random.below(2) == 0 {
                strides = random.permuted_strides(&shape.iter().rev().copied().collect::<Vec<_>>());
                strides = shape
                    .iter()
                    .rev()
                    .scan(1, |s, n| {
                        let now = *s;
                        *s *= *n as i64;
                        Some(now)
                    })
                    .collect::<Vec<_>>();
                strides.reverse();
            }
            for stride in &mut strides {
                if random.below(4) == 0 {
                    *stride = 0;
                }
            }
            MapInput { dtype, strides }
        })
        .collect();
    let count = inputs.len() as u16;
    let mut code = vec![];
    let mut exact: Vec<u16> = (0..count).collect();
    for _ in 0..random.below(6) {
        let registers = count + code.len() as u16;
        let any = |random: &mut Draw| random.below(u64::from(registers)) as u16;
        let instr = match random.below(8) {
            0 => Instr::Const(random.value()),
            1 if !shape.is_empty() => Instr::Index(random.below(shape.len() as u64) as u16),
            2 => Instr::Select(random.pick(&exact), any(random), any(random)),
            3 | 4 => {
                let f = random.pick(&tame());
                let stepped = matches!(f, Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Not);
                let of = if stepped || f == Unary::Exp { random.pick(&exact) } else { any(random) };
                Instr::Unary(f, of)
            }
            _ => {
                let f = random.pick(&BINARY);
                let stepped = f.is_logical();
                let mut operand = || if stepped { random.pick(&exact) } else { random.below(u64::from(registers)) as u16 };
                Instr::Binary(f, operand(), operand())
            }
        };
        if matches!(instr, Instr::Const(_) | Instr::Index(_)) {
            exact.push(registers);
        }
        code.push(instr);
    }
    let registers = count + code.len() as u16;
    let outputs: Vec<u16> = (0..1 + random.below(2)).map(|_| random.below(u64::from(registers)) as u16).collect();
    let dims: Vec<u16> = code.iter().filter_map(|i| if let Instr::Index(d) = i { Some(*d) } else { None }).collect();
    let mut origins: Vec<(u16, Origin)> = vec![];
    for d in dims {
        if random.below(2) == 0 && origins.iter().all(|(of, _)| *of != d) {
            let offset = Offset { base: 1, terms: vec![(AxisId(1), 40), (AxisId(2), 7)] };
            origins.push((d, Origin { offset, ..Origin::whole(shape[d as usize]) }));
        }
    }
    let results = outputs.len();
    Map {
        compute,
        shape,
        inputs,
        program: ScalarProgram { inputs: count, code, outputs },
        outputs: vec![compute; results],
        origins,
    }
}
