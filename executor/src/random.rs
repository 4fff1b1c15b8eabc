//! Counter-based random numbers: a function of seed, name and position, the same under every split.
//!
//! The mixer is the output function of SplitMix64 (Steele, Lea, Flood, "Fast splittable
//! pseudorandom number generators", 2014).

/// A stream of random numbers that can be read at any position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(u64);

impl Stream {
    /// The stream of `name` under `seed`.
    pub fn new(seed: u64, name: &str) -> Stream {
        // FNV-1a spreads the name, the mixer spreads both.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Stream(mix(hash ^ mix(seed)))
    }

    /// The stream of a part of this one.
    pub fn part(self, part: u64) -> Stream {
        Stream(mix(self.0 ^ mix(part)))
    }

    /// 64 random bits at `position`.
    pub fn bits(self, position: u64) -> u64 {
        mix(self.0.wrapping_add((position.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// A number in `0..n`, for `n` at least 1; its bias is below `n / 2^64`.
    pub fn below(self, position: u64, n: u64) -> u64 {
        ((u128::from(self.bits(position)) * u128::from(n)) >> 64) as u64
    }

    /// A number from the standard normal distribution (Box and Muller, 1958), with functions that
    /// round alike on every machine.
    pub fn normal(self, position: u64) -> f64 {
        let unit = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (radius, angle) = (unit(self.bits(2 * position)), unit(self.bits(2 * position + 1)));
        libm::sqrt(-2.0 * libm::log(radius)) * libm::cos(2.0 * std::f64::consts::PI * angle)
    }
}

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A permutation of `0..n` that is computed position by position: a Feistel network over the next
/// power of four, walked until the result is below `n` (Black and Rogaway, "Ciphers with arbitrary
/// finite domains", 2002).
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    stream: Stream,
    n: u64,
    half: u32,
}

impl Permutation {
    /// A permutation of `0..n`, chosen by `stream`.
    pub fn new(stream: Stream, n: u64) -> Permutation {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        Permutation { stream, n, half: bits.div_ceil(2).max(1) }
    }

    /// The place to which `position` (below `n`) goes.
    pub fn at(&self, position: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let mut value = position;
        loop {
            let (mut left, mut right) = (value >> self.half, value & mask);
            for round in 0..6 {
                let mixed = self.stream.part(round).bits(right) & mask;
                (left, right) = (right, left ^ mixed);
            }
            value = (left << self.half) | right;
            if value < self.n {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_mean_0_and_deviation_1() {
        let stream = Stream::new(7, "h.0.weight");
        let n = 100_000;
        let values: Vec<f64> = (0..n).map(|i| stream.normal(i)).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        assert_ne!(stream.normal(0), Stream::new(7, "h.1.weight").normal(0));
        assert_ne!(stream.normal(0), Stream::new(8, "h.0.weight").normal(0));
    }

    #[test]
    fn permutations_hit_everything_once() {
        for n in [1, 2, 3, 5, 64, 65, 1000] {
            let permutation = Permutation::new(Stream::new(3, "epoch").part(n), n);
            let mut seen: Vec<u64> = (0..n).map(|i| permutation.at(i)).collect();
            assert!(n < 64 || seen.iter().enumerate().any(|(i, at)| i as u64 != *at));
            seen.sort();
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
        }
    }
}
