//! Whether a program keeps padding: what is computed from zeros is zero.

use super::{Binary, Instr, ScalarProgram};
use crate::dtype::DType;

/// Whether all results are 0 where the inputs that `zero` names are, whatever the others are: any
/// finite numbers but 0. Registers are of `compute`.
pub fn keeps_zero(program: &ScalarProgram, compute: DType, zero: &[bool]) -> bool {
    let held = |x: f64| if compute == DType::F32 { f64::from(x as f32) } else { x };
    // What is known of each register.
    let mut known: Vec<Option<f64>> = zero.iter().map(|zero| zero.then_some(0.0)).collect();
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
    program.outputs.iter().all(|output| known.get(usize::from(*output)).copied().flatten() == Some(0.0))
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
        assert!(keeps_zero(&update(1e-8), DType::F32, &[true, false]));
        assert!(!keeps_zero(&update(0.0), DType::F32, &[true, false]), "0 / 0");
        assert!(!keeps_zero(&update(1e-60), DType::F32, &[true, false]), "0 / 0 in f32");
        assert!(!keeps_zero(&update(1e-8), DType::F32, &[false, true]), "nothing is known of the dividend");
    }

    #[test]
    fn a_constant_is_no_padding() {
        let offset = ProgramWriter::program(1, |w, x| vec![w.offset(x[0], 1.0)]);
        assert!(!keeps_zero(&offset, DType::F64, &[true]));
        assert!(keeps_zero(&ScalarProgram::identity(), DType::F64, &[true]));
    }
}
