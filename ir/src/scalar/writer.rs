//! Writing scalar programs.

use super::{Binary, Instr, Reg, Rounding, ScalarProgram, Unary};

/// Writes scalar programs.
pub struct ProgramWriter {
    inputs: u16,
    code: Vec<Instr>,
}

impl ProgramWriter {
    /// A program over `inputs` registers.
    pub fn program(inputs: usize, write: impl FnOnce(&mut ProgramWriter, &[Reg]) -> Vec<Reg>) -> ScalarProgram {
        let mut writer = ProgramWriter { inputs: inputs as u16, code: vec![] };
        let registers: Vec<Reg> = (0..inputs as u16).collect();
        let outputs = write(&mut writer, &registers);
        ScalarProgram { inputs: writer.inputs, code: writer.code, outputs }
    }

    /// Appends an instruction (or finds the same one) and gives its register.
    pub fn push(&mut self, instr: Instr) -> Reg {
        let same = |other: &Instr| match (other, &instr) {
            (Instr::Const(a), Instr::Const(b)) => a.to_bits() == b.to_bits(),
            (a, b) => a == b,
        };
        let at = self.code.iter().position(same).unwrap_or_else(|| {
            self.code.push(instr);
            self.code.len() - 1
        });
        self.inputs + at as u16
    }

    /// Appends all of `program`, its inputs given by `arguments` and its indices renumbered by
    /// `dims`; gives its outputs.
    pub fn inline(&mut self, program: &ScalarProgram, arguments: &[Reg], dims: impl Fn(u16) -> u16) -> Vec<Reg> {
        let mut registers = arguments.to_vec();
        for instr in &program.code {
            let register = self.push(instr.map(|r| registers[r as usize], &dims));
            registers.push(register);
        }
        program.outputs.iter().map(|r| registers[*r as usize]).collect()
    }
}

/// Shorthand for the arithmetic of scalar programs.
impl ProgramWriter {
    /// A constant.
    pub fn number(&mut self, value: f64) -> Reg {
        self.push(Instr::Const(value))
    }

    /// `f(a)`
    pub fn unary(&mut self, f: Unary, a: Reg) -> Reg {
        self.push(Instr::Unary(f, a))
    }

    /// `f(a, b)`
    pub fn binary(&mut self, f: Binary, a: Reg, b: Reg) -> Reg {
        self.push(Instr::Binary(f, a, b))
    }

    /// `a` where `condition` is not 0, else `b`
    pub fn select(&mut self, condition: Reg, a: Reg, b: Reg) -> Reg {
        self.push(Instr::Select(condition, a, b))
    }

    /// `a`, rounded
    pub fn round(&mut self, to: Rounding, a: Reg) -> Reg {
        self.push(Instr::Round(to, a))
    }

    /// `a + b`
    pub fn add(&mut self, a: Reg, b: Reg) -> Reg {
        self.binary(Binary::Add, a, b)
    }

    /// `a - b`
    pub fn sub(&mut self, a: Reg, b: Reg) -> Reg {
        self.binary(Binary::Sub, a, b)
    }

    /// `a * b`
    pub fn mul(&mut self, a: Reg, b: Reg) -> Reg {
        self.binary(Binary::Mul, a, b)
    }

    /// `a / b`
    pub fn div(&mut self, a: Reg, b: Reg) -> Reg {
        self.binary(Binary::Div, a, b)
    }

    /// `a + c`
    pub fn offset(&mut self, a: Reg, c: f64) -> Reg {
        let c = self.number(c);
        self.add(a, c)
    }

    /// `a * factor`
    pub fn scale(&mut self, a: Reg, factor: f64) -> Reg {
        let c = self.number(factor);
        self.mul(a, c)
    }
}
