//! What the compiler says: the resources of each kernel, or why there is none.

use crate::Resources;

/// Lines and bytes of an error; what is beyond is counted only.
const LINES: usize = 40;
const BYTES: usize = 4000;

const ENTRY: &str = "Compiling entry function '";

/// What the kernels of a text use, sorted by their names.
///
/// A kernel's part begins with `Compiling entry function 'NAME'`. In it are lines of its functions,
/// its own among them, with bytes of stack and spills, and one line of registers and shared memory.
pub fn resources(log: &str) -> Result<Vec<Resources>, String> {
    let mut kernels: Vec<Resources> = vec![];
    let mut has_registers = true;
    let complete = |known: bool| if known { Ok(()) } else { Err("NVRTC does not say how many registers it uses".to_string()) };
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once(ENTRY) {
            complete(has_registers)?;
            let name = rest.split('\'').next().unwrap_or_default();
            kernels.push(Resources { entry: name.to_string(), ..Resources::default() });
            has_registers = false;
            continue;
        }
        let Some(kernel) = kernels.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            kernel.stack = kernel.stack.max(number_of(line, "bytes stack frame")?);
            kernel.spill_stores = kernel.spill_stores.saturating_add(number_of(line, "bytes spill stores")?);
            kernel.spill_loads = kernel.spill_loads.saturating_add(number_of(line, "bytes spill loads")?);
        } else if line.contains(": Used ") {
            kernel.registers = number_of(line, "registers")?;
            has_registers = true;
            // The line has these only where they are not 0.
            if line.contains("bytes smem") {
                kernel.shared = number_of(line, "bytes smem")?;
            }
            if line.contains("bytes cumulative stack size") {
                kernel.stack = kernel.stack.max(number_of(line, "bytes cumulative stack size")?);
            }
        }
    }
    complete(has_registers)?;
    if kernels.is_empty() {
        return Err("NVRTC names no kernel that it assembled".to_string());
    }
    kernels.sort_by(|a, b| a.entry.cmp(&b.entry));
    Ok(kernels)
}

/// The number that stands before `unit` in a line `..., N unit, ...`.
fn number_of(line: &str, unit: &str) -> Result<u32, String> {
    let before = line.split(',').find_map(|part| part.trim_end().strip_suffix(unit));
    let number = before.and_then(|before| before.split_whitespace().next_back()?.parse().ok());
    number.ok_or_else(|| format!("NVRTC says what has no number of `{unit}`: `{}`", line.trim()))
}

/// The compiler's errors, without what it says of kernels that it did assemble, cut where it is
/// long.
pub fn failure(code: &str, log: &str) -> String {
    // Each part of a log ends with a zero byte.
    let lines = log.split(['\n', '\0']).map(str::trim_end);
    let is_info = |line: &str| line.starts_with("ptxas info") || line.starts_with("ptxas         .");
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !is_info(line)).collect();
    if lines.is_empty() {
        return format!("NVRTC failed with {code} and says nothing more");
    }
    let mut text = String::new();
    for (i, line) in lines.iter().enumerate() {
        let room = BYTES.saturating_sub(text.len());
        if i >= LINES || room == 0 {
            text.push_str(&format!("\n(and {} lines more)", lines.len() - i));
            break;
        }
        if i > 0 {
            text.push('\n');
        }
        let end = line.floor_char_boundary(room);
        text.push_str(&line[..end]);
        if end < line.len() {
            text.push_str(" ...");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::failure;

    const CODE: &str = "NVRTC_ERROR_COMPILATION";

    #[test]
    fn errors_are_what_is_left_of_logs() {
        for log in [include_str!("../tests/logs/nvrtc-13.5-shared.log"), include_str!("../tests/logs/nvrtc-12.9-shared.log")] {
            let expected = "ptxas error   : Entry function 'k' uses too much shared data (0x13880 bytes, 0xc000 max)";
            assert_eq!(failure(CODE, log), expected);
        }
        for log in [include_str!("../tests/logs/nvrtc-13.5-syntax.log"), include_str!("../tests/logs/nvrtc-12.9-syntax.log")] {
            let failure = failure(CODE, log);
            assert!(failure.starts_with("k.cu(40): error: expected an expression\n  extern"), "{failure}");
            assert!(failure.ends_with("\n2 errors detected in the compilation of \"kernels.cu\"."), "{failure}");
        }
        assert!(failure(CODE, "\n\0").contains(CODE));
    }
}
