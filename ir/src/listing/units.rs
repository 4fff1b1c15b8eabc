//! Sizes for people.

/// `bytes` in the largest unit in which it is at least 1, with at most three digits: `64 B`,
/// `3.9 MiB`, `120 GiB`.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 9.95 && value.fract() != 0.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// `count` with thousands apart: `1,234,567`.
pub fn count_text(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_few_digits() {
        let cases = [(0, "0 B"), (64, "64 B"), (1024, "1 KiB"), (16 << 10, "16 KiB"), (4_089_446, "3.9 MiB"), (1 << 30, "1 GiB")];
        for (bytes, text) in cases.into_iter().chain([(1023 << 10, "1.0 MiB"), (1000, "1000 B"), (u64::MAX, "16384 PiB")]) {
            assert_eq!(bytes_text(bytes), text);
        }
    }

    #[test]
    fn thousands_are_apart() {
        for (count, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (124_439_808, "124,439,808")] {
            assert_eq!(count_text(count), text);
        }
    }
}
