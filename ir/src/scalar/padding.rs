//! What a program makes of the numbers that fill up a line: of zeros it should make zeros.

use super::{Binary, Instr, ScalarProgram};
use crate::dtype::DType;

/// A number where a line is filled up.
#[derive(Debug, Clone, Copy)]
pub struct Filling {
    /// It, if it is known.
    pub value: Option<f64>,
    /// Whether all elements of the line have this number. If it is not known, it is finite and not
    /// 0, or the line's own elements would be no numbers either.
    pub alike: bool,
}

/// The results where of some inputs the numbers are known. Registers are of `compute`.
pub fn padding(program: &ScalarProgram, compute: DType, inputs: &[Filling]) -> Vec<Option<f64>> {
    let held = |x: f64| if compute == DType::F32 { f64::from(x as f32) } else { x };
    let mut known: Vec<Filling> = inputs.iter().map(|input| Filling { value: input.value.map(held), ..*input }).collect();
    for instr in &program.code {
        let of = |r: u16| known.get(usize::from(r)).copied().unwrap_or(Filling { value: None, alike: false });
        let filling = match *instr {
            Instr::Const(value) => Filling { value: Some(held(value)), alike: true },
            Instr::Index(_) => Filling { value: None, alike: false },
            Instr::Unary(f, a) => Filling { value: of(a).value.map(|a| held((f.facts().value)(a))), ..of(a) },
            Instr::Binary(f, a, b) => {
                let (a, b) = (of(a), of(b));
                let value = match (a.value, b.value) {
                    (Some(a), Some(b)) => Some(held((f.facts().value)(a, b))),
                    (Some(0.0), None) if b.alike && matches!(f, Binary::Mul | Binary::Div) => Some(0.0),
                    (None, Some(0.0)) if a.alike && f == Binary::Mul => Some(0.0),
                    _ => None,
                };
                Filling { value, alike: a.alike && b.alike }
            }
            Instr::Round(to, a) => Filling { value: of(a).value.map(|a| to.round_f64(a)), ..of(a) },
            Instr::Select(a, b, c) => {
                let (a, b, c) = (of(a), of(b), of(c));
                let value = match a.value {
                    Some(a) => (if a == 0.0 { c } else { b }).value,
                    None => b.value.filter(|b| c.value == Some(*b)),
                };
                Filling { value, alike: a.alike && b.alike && c.alike }
            }
        };
        known.push(filling);
    }
    program.outputs.iter().map(|output| known.get(usize::from(*output)).and_then(|filling| filling.value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::{ProgramWriter, Unary};

    const ZERO: Filling = Filling { value: Some(0.0), alike: false };
    /// A number such as a rate.
    const RATE: Filling = Filling { value: None, alike: true };
    const UNKNOWN: Filling = Filling { value: None, alike: false };

    /// An update by `g / (sqrt(g * g) + eps)` at a rate that is not known.
    fn update(eps: f64) -> ScalarProgram {
        ProgramWriter::program(2, |w, x| {
            let square = w.mul(x[0], x[0]);
            let root = w.unary(Unary::Sqrt, square);
            let below = w.offset(root, eps);
            let step = w.div(x[0], below);
            vec![w.mul(step, x[1])]
        })
    }

    #[test]
    fn an_update_keeps_zeros_unless_it_divides_by_one() {
        let zero = [Some(0.0)];
        assert_eq!(padding(&update(1e-8), DType::F32, &[ZERO, RATE]), zero);
        assert_ne!(padding(&update(0.0), DType::F32, &[ZERO, RATE]), zero, "0 / 0");
        assert_ne!(padding(&update(1e-60), DType::F32, &[ZERO, RATE]), zero, "0 / 0 in f32");
        assert_eq!(padding(&update(1e-60), DType::F64, &[ZERO, RATE]), zero);
        assert_eq!(padding(&update(1e-8), DType::F32, &[UNKNOWN, RATE]), [None]);
    }

    #[test]
    fn a_constant_is_no_padding() {
        let offset = ProgramWriter::program(1, |w, x| vec![w.offset(x[0], 1.0)]);
        assert_eq!(padding(&offset, DType::F64, &[ZERO]), [Some(1.0)]);
        assert_eq!(padding(&ScalarProgram::identity(), DType::F64, &[ZERO]), [Some(0.0)]);
    }

    #[test]
    fn zeros_by_what_is_of_elements_are_not_known() {
        // `g / sqrt(v - rate)` and `g / max(v, rate)`, whose divisors may be no numbers, and 0.
        for f in [Binary::Sub, Binary::Max] {
            let update = ProgramWriter::program(3, |w, x| {
                let below = w.binary(f, x[1], x[2]);
                let below = w.unary(Unary::Sqrt, below);
                vec![w.div(x[0], below)]
            });
            assert_eq!(padding(&update, DType::F64, &[ZERO, ZERO, RATE]), [None], "{f:?}");
        }
        let product = ProgramWriter::program(2, |w, x| vec![w.mul(x[0], x[1])]);
        assert_eq!(padding(&product, DType::F64, &[ZERO, UNKNOWN]), [None]);
        let by_less = ProgramWriter::program(2, |w, x| {
            let less = w.offset(x[1], -1.0);
            vec![w.mul(x[0], less)]
        });
        assert_eq!(padding(&by_less, DType::F64, &[ZERO, RATE]), [Some(0.0)]);
    }
}
