//! What a program makes of the numbers that fill up a line: of zeros it should make zeros.

use super::{Binary, Instr, ScalarProgram};
use crate::dtype::DType;

/// The results where of some inputs the numbers are known; of the others nothing is, but that they
/// are finite and not 0. Registers are of `compute`.
pub fn padding(program: &ScalarProgram, compute: DType, inputs: &[Option<f64>]) -> Vec<Option<f64>> {
    let held = |x: f64| if compute == DType::F32 { f64::from(x as f32) } else { x };
    let mut known: Vec<Option<f64>> = inputs.iter().map(|input| input.map(held)).collect();
    for instr in &program.code {
        let of = |r: u16| known.get(usize::from(r)).copied().flatten();
        let value = match *instr {
            Instr::Const(value) => Some(held(value)),
            Instr::Index(_) => None,
            Instr::Unary(f, a) => of(a).map(|a| held((f.facts().value)(a))),
            Instr::Binary(f, a, b) => match (of(a), of(b)) {
                (Some(a), Some(b)) => Some(held((f.facts().value)(a, b))),
                (Some(0.0), None) if matches!(f, Binary::Mul | Binary::Div) => Some(0.0),
                (None, Some(0.0)) if f == Binary::Mul => Some(0.0),
                _ => None,
            },
            Instr::Select(a, b, c) => match of(a) {
                Some(a) => of(if a == 0.0 { c } else { b }),
                None => of(b).filter(|b| of(c) == Some(*b)),
            },
        };
        known.push(value);
    }
    program.outputs.iter().map(|output| known.get(usize::from(*output)).copied().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::{ProgramWriter, Unary};

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
        assert_eq!(padding(&update(1e-8), DType::F32, &[Some(0.0), None]), zero);
        assert_ne!(padding(&update(0.0), DType::F32, &[Some(0.0), None]), zero, "0 / 0");
        assert_ne!(padding(&update(1e-60), DType::F32, &[Some(0.0), None]), zero, "0 / 0 in f32");
        assert_eq!(padding(&update(1e-60), DType::F64, &[Some(0.0), None]), zero);
        assert_eq!(padding(&update(1e-8), DType::F32, &[None, None]), [None]);
    }

    #[test]
    fn a_constant_is_no_padding() {
        let offset = ProgramWriter::program(1, |w, x| vec![w.offset(x[0], 1.0)]);
        assert_eq!(padding(&offset, DType::F64, &[Some(0.0)]), [Some(1.0)]);
        assert_eq!(padding(&ScalarProgram::identity(), DType::F64, &[Some(0.0)]), [Some(0.0)]);
    }
}
