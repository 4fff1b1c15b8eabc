//! Writing texts of kernels: lines, types, constants and names.

use shardc_ir::dtype::DType;
use shardc_ir::position::Offset;
use std::fmt::Write as _;

/// Where a function's name stands until the text that it is made of is known.
pub const NAME: &str = "@NAME@";

/// A text that grows by lines.
#[derive(Debug, Default)]
pub struct Text {
    text: String,
    depth: usize,
}

impl Text {
    /// Adds a line; one that ends in `{` indents what follows, one that begins with `}` ends that.
    pub fn line(&mut self, line: impl AsRef<str>) {
        let line = line.as_ref();
        if line.starts_with('}') {
            self.depth -= 1;
        }
        let _ = writeln!(self.text, "{:1$}{line}", "", self.depth * 4);
        if line.ends_with('{') {
            self.depth += 1;
        }
    }

    /// Adds lines.
    pub fn lines<S: AsRef<str>>(&mut self, lines: impl IntoIterator<Item = S>) {
        for line in lines {
            self.line(line);
        }
    }

    /// The text, in which functions have the name of their form and a number that tells them from
    /// those of other texts, and that name.
    pub fn named(self, form: &str) -> (String, String) {
        let name = hashed(form, &self.text);
        (self.text.replace(NAME, &name), name)
    }
}

/// A name of a form and a number that tells the text from others.
pub fn hashed(form: &str, text: &str) -> String {
    format!("{form}_{:016x}", fnv1a(text.as_bytes()))
}

/// The hash FNV-1a of 64 bits. Source: Fowler, Noll, Vo, draft-eastlake-fnv.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The type of an element in memory.
pub fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::F32 => "float",
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        DType::I64 => "i64",
        DType::Bool => "bool8",
    }
}

/// The type of a register that holds numbers of `dtype`.
pub fn register(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::F32 | DType::BF16 | DType::F16 => "float",
        DType::I64 | DType::Bool => "i64",
    }
}

/// The function that converts a number to `dtype`.
pub fn conversion(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "to_f64",
        DType::F32 => "to_f32",
        DType::BF16 => "to_bf16",
        DType::F16 => "to_f16",
        DType::I64 => "to_i64",
        DType::Bool => "to_bool8",
    }
}

/// The function that converts a number to a register of `dtype`.
pub fn to_register(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "to_f64",
        DType::F32 | DType::BF16 | DType::F16 => "to_f32",
        DType::I64 | DType::Bool => "to_i64",
    }
}

/// A constant of a register of `dtype`, to the bit.
pub fn constant(dtype: DType, value: f64) -> String {
    match register(dtype) {
        "float" if (value as f32).is_finite() => format!("{:?}f", value as f32),
        "float" => format!("float_of({:#010x}u)", (value as f32).to_bits()),
        "double" if value.is_finite() => format!("{value:?}"),
        "double" => format!("double_of({:#018x}ull)", value.to_bits()),
        _ => integer(value as i64),
    }
}

/// An integer constant of 64 bits; the lowest has no literal.
pub fn integer(value: i64) -> String {
    if value == i64::MIN { format!("({}ll - 1)", i64::MIN + 1) } else { format!("{value}ll") }
}

/// An offset as an expression: a constant, or a number that the launch is given.
pub fn number(offset: &Offset, numbers: &mut Vec<Offset>) -> String {
    if offset.terms.is_empty() {
        return integer(offset.base);
    }
    numbers.push(offset.clone());
    format!("n{}", numbers.len() - 1)
}

/// `* number` behind a factor, nothing for 1.
pub fn times(number: impl Into<i128>) -> String {
    match number.into() {
        1 => String::new(),
        number => format!(" * {number}"),
    }
}

/// `/ number` behind a dividend, nothing for 1.
pub fn over(number: u64) -> String {
    if number == 1 { String::new() } else { format!(" / {number}") }
}

/// The digit of the number `from` that counts `below` and has `size` values.
pub fn digit(from: &str, below: u64, size: u64) -> String {
    if size == 1 { "0".into() } else { format!("{from}{} % {size}", over(below)) }
}

/// Such a digit times a number.
pub fn digit_times(from: &str, below: u64, size: u64, number: u64) -> String {
    if size == 1 { "0".into() } else { digit(from, below, size) + &times(number) }
}

/// `+ number` or `- number` behind a term, nothing for 0.
pub fn plus(number: i128) -> String {
    match number {
        0 => String::new(),
        1.. => format!(" + {number}"),
        _ => format!(" - {}", -number),
    }
}

/// The place of the index `first` and of `rest`, indices with their sizes, in row-major order. An
/// index of size 1 is 0.
pub fn row_major(first: &str, rest: &[(&str, u64)]) -> String {
    rest.iter().filter(|(_, size)| *size != 1).fold(first.to_owned(), |outer, (index, size)| {
        let outer = if outer.contains(' ') { format!("({outer})") } else { outer };
        format!("{outer} * {size} + {index}")
    })
}

/// `a + b + ...`, `0` for nothing.
pub fn sum(terms: Vec<String>) -> String {
    if terms.is_empty() { "0".into() } else { terms.join(" + ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_what_they_were() {
        assert_eq!(constant(DType::F32, 0.044715), "0.044715f");
        assert_eq!(constant(DType::BF16, 1e-5), "1e-5f");
        assert_eq!(constant(DType::F32, f64::NEG_INFINITY), "float_of(0xff800000u)");
        assert_eq!(constant(DType::F64, 1.0), "1.0");
        assert_eq!(constant(DType::I64, -3.0), "-3ll");
        assert_eq!(constant(DType::I64, -1e300), "(-9223372036854775807ll - 1)");
    }

    #[test]
    fn texts_are_indented_and_named_by_what_they_say() {
        let mut text = Text::default();
        text.lines([&format!("void {NAME}() {{"), "if (x) {", "y();", "}", "}"]);
        let (text, name) = text.named("map");
        assert_eq!(text, format!("void {name}() {{\n    if (x) {{\n        y();\n    }}\n}}\n"));
        assert!(name.starts_with("map_") && name.len() == 20);
    }
}
