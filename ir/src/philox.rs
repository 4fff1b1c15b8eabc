//! Philox4x32-10: random numbers as a function of a counter and a key.
//!
//! Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (2011).

/// Multipliers of the two halves of a counter.
pub const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];

/// The increments of the key in each round: the golden ratio, and the root of 3 less 1.
pub const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Rounds.
pub const ROUNDS: usize = 10;

/// The four words at `counter` under `key`.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let [a, b] = [u64::from(MULTIPLIERS[0]) * u64::from(counter[0]), u64::from(MULTIPLIERS[1]) * u64::from(counter[2])];
        let (high, low) = (|n: u64| (n >> 32) as u32, |n: u64| n as u32);
        counter = [high(b) ^ counter[1] ^ key[0], low(b), high(a) ^ counter[3] ^ key[1], low(a)];
    }
    counter
}

/// The random word of element `index` in stream `stream` at step `step`: word `index % 4` of the
/// block `index / 4`. The key is the seed; of the step 32 bits count.
pub fn word(index: u64, seed: u64, stream: u32, step: u64) -> u32 {
    let block = index / 4;
    let counter = [block as u32, (block >> 32) as u32, step as u32, stream];
    philox(counter, [seed as u32, (seed >> 32) as u32])[(index % 4) as usize]
}

/// The words from which on an element is kept, where a share `ratio` (0 to below 1) is dropped.
pub fn threshold(ratio: f64) -> u32 {
    // Rust casts saturate.
    (ratio * 2f64.powi(32)).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the authors' library Random123.
    #[test]
    fn known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox(counter, key), expected);
        }
    }
}
