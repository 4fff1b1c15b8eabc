//! Bits that the host gives, kept in files for machines without a C++ compiler: hashes, and of each
//! element as much as says which one differs.

use super::support::home;
use serde::{Deserialize, Serialize};
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::plan_file::hash;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where the files are written, or read, instead of the folder `expected` beside the models.
const FOLDER: &str = "SHARDC_GPU_EXPECTED";

/// Elements of a result: their type, or the bytes of a word that is no number of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Of(DType),
    Word(usize),
}

/// How much is kept of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// All.
    Bytes,
    /// One byte that follows from its own.
    Check,
    /// Nothing: the hash of all says whether one differs.
    Nothing,
}

/// What one run gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bits {
    /// The hash of what was read.
    inputs: String,
    /// For each result its hash, and how many bytes are kept.
    results: Vec<(String, usize)>,
    /// What is kept.
    #[serde(skip)]
    kept: Vec<u8>,
}

impl Kind {
    fn bytes(self) -> usize {
        match self {
            Kind::Of(dtype) => dtype.bytes() as usize,
            Kind::Word(bytes) => bytes,
        }
    }

    /// The bytes, with one pattern for all that is no number: which one it is may differ.
    fn canonical(self, bytes: &[u8]) -> Vec<u8> {
        let Kind::Of(dtype) = self else { return bytes.to_vec() };
        let infinity: u64 = match dtype {
            DType::F64 => 0x7ff0 << 48,
            DType::F32 => 0x7f80 << 16,
            DType::BF16 => 0x7f80,
            DType::F16 => 0x7c00,
            DType::I64 | DType::Bool => return bytes.to_vec(),
        };
        let sign = 1u64 << (8 * self.bytes() - 1);
        let mut all = bytes.to_vec();
        for element in all.chunks_exact_mut(self.bytes()) {
            let word = element.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
            if word & !sign > infinity {
                element.fill(0xff);
            }
        }
        all
    }

    fn shown(self, bytes: &[u8]) -> String {
        let hex: String = bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Kind::Of(dtype) => {
                let number = Tensor { dtype, shape: vec![], bytes: bytes.to_vec() }.to_f64()[0];
                format!("{number} (0x{hex})")
            }
            Kind::Word(_) => format!("0x{hex}"),
        }
    }

    fn kept(self, keep: Keep, bytes: &[u8]) -> Vec<u8> {
        // FNV-1a, folded.
        let check = |element: &[u8]| {
            let mixed = element.iter().fold(0x811c_9dc5u32, |mixed, byte| (mixed ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
            (mixed ^ mixed >> 8 ^ mixed >> 16 ^ mixed >> 24) as u8
        };
        match keep {
            Keep::Bytes => bytes.to_vec(),
            Keep::Check => bytes.chunks_exact(self.bytes()).map(check).collect(),
            Keep::Nothing => vec![],
        }
    }
}

impl Bits {
    /// Those of results, made of `inputs`.
    pub fn of(keep: Keep, inputs: &[Vec<u8>], kinds: &[Kind], results: &[Vec<u8>]) -> Bits {
        let mut bits = Bits { inputs: hash(&inputs.concat()), results: vec![], kept: vec![] };
        for (kind, bytes) in kinds.iter().zip(results) {
            let bytes = kind.canonical(bytes);
            let kept = kind.kept(keep, &bytes);
            bits.results.push((hash(&bytes), kept.len()));
            bits.kept.extend(kept);
        }
        bits
    }

    /// Holds results to these bits.
    pub fn hold(&self, keep: Keep, inputs: &[Vec<u8>], kinds: &[Kind], found: &[Vec<u8>]) -> Result<(), String> {
        if self.inputs != hash(&inputs.concat()) {
            return Err("the expected bits are of other operands; make them anew with `tests/gpu.sh --build`".into());
        }
        let mut kept = &self.kept[..];
        for (o, ((kind, found), (digest, count))) in kinds.iter().zip(found).zip(&self.results).enumerate() {
            let (own, rest) = kept.split_at(*count);
            kept = rest;
            let bytes = kind.canonical(found);
            if hash(&bytes) == *digest {
                continue;
            }
            let each = if keep == Keep::Bytes { kind.bytes() } else { 1 };
            let checks = kind.kept(keep, &bytes);
            let mut differ = own.chunks(each).zip(checks.chunks(each)).enumerate().filter(|(_, (a, b))| a != b);
            let Some((at, (want, _))) = differ.next() else {
                return Err(format!("result {o} has other bits than the host's; nothing kept says where"));
            };
            let more = differ.count();
            let is = kind.shown(&found[at * kind.bytes()..][..kind.bytes()]);
            let want = if keep == Keep::Bytes { format!(": {}", kind.shown(want)) } else { String::new() };
            return Err(format!("result {o}[{at}] is {is}, not what the host gives{want}; {more} others differ"));
        }
        Ok(())
    }
}

/// A file of bits, by the names of runs.
#[derive(Debug, Default)]
pub struct File(pub BTreeMap<String, Bits>);

fn path(name: &str) -> PathBuf {
    let folder = std::env::var_os(FOLDER).map_or_else(|| home().join("expected"), PathBuf::from);
    folder.join(format!("{name}.bits"))
}

impl File {
    /// The file of that name, where it is.
    pub fn read(name: &str) -> Option<File> {
        let path = path(name);
        let bytes = std::fs::read(&path).ok()?;
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let (head, mut kept) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
        let mut all: BTreeMap<String, Bits> = serde_json::from_slice(head).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for bits in all.values_mut() {
            let count = bits.results.iter().map(|(_, count)| count).sum();
            let (own, rest) = kept.split_at_checked(count).unwrap_or_else(|| panic!("{} is cut short", path.display()));
            bits.kept = own.to_vec();
            kept = rest;
        }
        Some(File(all))
    }

    /// Writes it: bytes in all.
    pub fn write(&self, name: &str) -> usize {
        let path = path(name);
        let head = serde_json::to_vec(&self.0).unwrap();
        let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
        bytes.extend(head);
        self.0.values().for_each(|bits| bytes.extend(&bits.kept));
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).unwrap();
        std::fs::write(&path, &bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        bytes.len()
    }
}

#[test]
fn a_bit_that_differs_is_found() {
    let kinds = [Kind::Of(DType::F32)];
    let floats = |values: &[f32]| vec![values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()];
    let inputs = floats(&[1.0]);
    let other = f32::from_bits(f32::NAN.to_bits() | 1 << 31 | 5);
    let bits = Bits::of(Keep::Nothing, &inputs, &kinds, &floats(&[1.0, f32::NAN]));
    bits.hold(Keep::Nothing, &inputs, &kinds, &floats(&[1.0, other])).unwrap();
    let why = bits.hold(Keep::Nothing, &inputs, &kinds, &floats(&[0.5, other])).unwrap_err();
    assert!(why.contains("result 0 has other bits"), "{why}");
    for keep in [Keep::Bytes, Keep::Check] {
        let bits = Bits::of(keep, &inputs, &kinds, &floats(&[1.0, f32::NAN, -0.0]));
        bits.hold(keep, &inputs, &kinds, &floats(&[1.0, other, -0.0])).unwrap();
        let why = bits.hold(keep, &inputs, &kinds, &floats(&[1.0, f32::NAN, 0.0])).unwrap_err();
        assert!(why.contains("result 0[2] is 0 (0x00000000)") && why.contains("0 others"), "{why}");
        bits.hold(keep, &inputs, &kinds, &floats(&[1.0, 2.0, -0.0])).unwrap_err();
        bits.hold(keep, &floats(&[2.0]), &kinds, &floats(&[1.0, f32::NAN, -0.0])).unwrap_err();
    }
}
