//! Which algorithm of cuBLASLt computes each product. The library's first one that works is taken;
//! what was chosen once is kept, and is the same on all ranks, since algorithms differ in bits.

use crate::device::{Device, Stream};
use serde::{Deserialize, Serialize};
use shardc_codegen::matmul::Matmul;
use shardc_cublaslt::{Algorithm, Described, Operands};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::time::{Duration, Instant};

/// Runs of an algorithm that is timed.
const RUNS: u32 = 5;

/// The choices for one kind of GPU and one version of the library.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choices {
    /// The GPU's name.
    pub device: String,
    /// The library's version.
    pub library: [usize; 3],
    /// For each product its algorithm.
    pub products: Vec<(Matmul, Algorithm)>,
}

impl Choices {
    /// What was chosen for a product.
    pub fn of(&self, product: &Matmul) -> Option<&Algorithm> {
        self.products.iter().find(|(known, _)| known == product).map(|(_, algorithm)| algorithm)
    }

    /// Adds what is chosen elsewhere for products that have no choice here.
    pub fn add(&mut self, other: &Choices) {
        for (product, algorithm) in &other.products {
            if self.of(product).is_none() {
                self.products.push((product.clone(), *algorithm));
            }
        }
    }

    /// Whether they hold for a GPU and a library.
    pub fn are_for(&self, device: &str, library: [usize; 3]) -> bool {
        self.device == device && self.library == library
    }

    /// Chooses for a product, unless that was done: the first of the library's algorithms that fits
    /// into the room and survives a run in `stream` on `operands`, of which nobody needs the bytes.
    /// To tune, each is timed, and the fastest is taken.
    ///
    /// # Errors
    /// If no algorithm works.
    pub fn choose(
        &mut self,
        device: &dyn Device,
        product: &Matmul,
        described: &Described,
        operands: &Operands,
        stream: Stream,
        tune: bool,
    ) -> Result<(), Reason> {
        if let Some(known) = self.of(product) {
            return check(device, product, described, known);
        }
        let candidates = device.candidates(described)?;
        let (mut why, mut best) = (None, None::<(Duration, Algorithm)>);
        for candidate in candidates.iter().filter(|candidate| candidate.room <= product.workspace) {
            let run = device.multiply(described, &candidate.algorithm, operands, stream);
            match run.and_then(|()| device.synchronize(stream)) {
                Ok(()) if tune => {
                    let time = timed(device, described, &candidate.algorithm, operands, stream)?;
                    if best.is_none_or(|(least, _)| time < least) {
                        best = Some((time, candidate.algorithm));
                    }
                }
                Ok(()) => {
                    best = Some((Duration::ZERO, candidate.algorithm));
                    break;
                }
                Err(error) => why = Some(error),
            }
        }
        if let Some((_, algorithm)) = best {
            self.products.push((product.clone(), algorithm));
            return Ok(());
        }
        let last = why.map_or_else(String::new, |why| format!(", the last one because {why}"));
        Err(reason!("none of {} algorithms of cuBLASLt computes a product of {}{last}", candidates.len(), sizes(product)))
    }
}

/// The least time of a run.
fn timed(
    device: &dyn Device,
    described: &Described,
    algorithm: &Algorithm,
    operands: &Operands,
    stream: Stream,
) -> Result<Duration, Reason> {
    let mut least = Duration::MAX;
    for _ in 0..RUNS {
        let began = Instant::now();
        device.multiply(described, algorithm, operands, stream)?;
        device.synchronize(stream)?;
        least = least.min(began.elapsed());
    }
    Ok(least)
}

/// Whether an algorithm that was chosen elsewhere computes a product here.
///
/// # Errors
/// If the library does not know it, or it takes too much room.
pub fn check(device: &dyn Device, product: &Matmul, described: &Described, algorithm: &Algorithm) -> Result<(), Reason> {
    let room = device.room(described, algorithm)?;
    if room <= product.workspace {
        return Ok(());
    }
    Err(reason!(
        "the algorithm that was chosen for a product of {} takes {room} bytes of room, of which there are {}",
        sizes(product),
        product.workspace
    ))
}

fn sizes(product: &Matmul) -> String {
    let sums = if product.transposed[0] { product.a.rows } else { product.a.columns };
    format!("{} x {} x {} ({})", product.d.rows, sums, product.d.columns, product.a.dtype)
}
