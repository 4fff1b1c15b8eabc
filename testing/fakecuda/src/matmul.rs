//! cuBLASLt: what it is told, its candidates, and products by plain loops that refuse what its
//! manual refuses.

mod algo;
mod objects;

pub use algo::Algo;
pub use objects::{Kind, Objects, Told};

use crate::memory::{Toucher, Way};
use crate::run::{Problem, failed, illegal};
use crate::trace::{Description, Lies, Traced};
use crate::work::Work;
use crate::world::World;
use shardc_cuda_testing::product::{self, Element, Epilogue, Layout, Memory, Place, Product};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

pub const INVALID_VALUE: u32 = 7;
pub const EXECUTION_FAILED: u32 = 13;
pub const NOT_SUPPORTED: u32 = 15;

/// The version, which no cuBLASLt has.
pub const VERSION: usize = 990_000;

/// A call of `cublasLtMatmul`.
#[derive(Debug, Clone)]
pub struct Call {
    /// What it is.
    pub product: Product,
    /// `A`, `B`, `C` and `D`.
    pub matrices: [u64; 4],
    /// The vector of the epilogue.
    pub bias: u64,
    /// The room, and its bytes.
    pub workspace: (u64, u64),
    /// The candidate that was chosen.
    pub candidate: Option<u64>,
}

/// Bytes from the first element to behind the last.
fn reach(layout: &Layout) -> u64 {
    let last = |count: u64, step: i64| count.max(1).saturating_sub(1).saturating_mul(step.max(0) as u64);
    let elements =
        layout.rows.saturating_add(last(layout.columns, layout.leading)).saturating_add(last(layout.batch, layout.stride));
    elements.saturating_mul(layout.element.bytes())
}

impl Call {
    /// What each operand is called, where it lies, its bytes, and whether it is read and written.
    fn operands(&self) -> Vec<(&'static str, u64, u64, bool, bool)> {
        let [a, b, c, d] = self.matrices;
        let product = &self.product;
        let mut found = vec![("A", a, reach(&product.a), true, false), ("B", b, reach(&product.b), true, false)];
        let reads_c = product.beta != 0.0;
        if reads_c && c != d {
            found.push(("C", c, reach(&product.c), true, false));
        }
        found.push(("D", d, reach(&product.d), reads_c && c == d, true));
        if let Some((bytes, is_written)) = self.vector() {
            found.push(("bias", self.bias, bytes, !is_written, is_written));
        }
        if self.workspace.1 > 0 && product.workspace > 0 {
            found.push(("workspace", self.workspace.0, self.workspace.1, false, true));
        }
        found
    }

    /// Bytes of the epilogue's vector, and whether it is written.
    fn vector(&self) -> Option<(u64, bool)> {
        let d = &self.product.d;
        let (length, is_written) = match self.product.epilogue {
            Epilogue::Default => return None,
            Epilogue::Bias => (d.rows, false),
            Epilogue::BiasGradientA => (d.rows, true),
            Epilogue::BiasGradientB => (d.columns, true),
        };
        let between = d.batch.saturating_sub(1).saturating_mul(self.product.bias_stride.max(0) as u64);
        Some((length.saturating_add(between).saturating_mul(d.element.bytes()), is_written))
    }

    /// The memory of the call, with the bytes that `read` gives.
    fn memory<E>(&self, mut read: impl FnMut(u64, u64) -> Result<Vec<u8>, E>) -> Result<Memory, E> {
        let [a, b, c, d] = self.matrices;
        let product = &self.product;
        let mut place = |address: u64, bytes: u64| Ok(Place { address, bytes: read(address, bytes)? });
        Ok(Memory {
            a: place(a, reach(&product.a))?,
            b: place(b, reach(&product.b))?,
            c: if c == d { None } else { Some(place(c, reach(&product.c))?) },
            d: place(d, reach(&product.d))?,
            bias: match self.vector() {
                Some((bytes, _)) if self.bias != 0 => Some(place(self.bias, bytes)?),
                _ => None,
            },
            workspace: self.workspace,
        })
    }

    /// The call as the trace has it.
    pub fn traced(&self) -> Traced {
        let product = &self.product;
        let lies = |layout: &Layout| Lies {
            element: format!("{:?}", layout.element).to_lowercase(),
            rows: layout.rows,
            columns: layout.columns,
            leading: layout.leading,
            batch: layout.batch,
            stride: layout.stride,
        };
        let [a, b, c, d] = self.matrices;
        Traced::Product {
            product: Description {
                compute: [format!("{:?}", product.compute).to_lowercase(), format!("{:?}", product.scale).to_lowercase()],
                scales: [product.alpha, product.beta],
                transposed: product.transposed,
                layouts: [&product.a, &product.b, &product.c, &product.d].into_iter().map(lies).collect(),
                epilogue: match product.epilogue {
                    Epilogue::Default => "default",
                    Epilogue::Bias => "bias",
                    Epilogue::BiasGradientA => "bgrada",
                    Epilogue::BiasGradientB => "bgradb",
                }
                .into(),
                candidate: self.candidate,
            },
            a,
            b,
            c,
            d,
            bias: self.vector().map(|_| self.bias),
            workspace: [self.workspace.0, self.workspace.1],
        }
    }
}

impl World {
    /// `cublasLtMatmul`
    pub fn multiply(&mut self, stream: u64, call: Call) -> Result<(), u32> {
        if let Some(code) = self.fault("matmul") {
            self.report(format!("cuBLASLt: fault {code} was asked for"));
            return Err(code);
        }
        // The manual's demands follow from no byte of the memory, so it need not be there yet. What
        // would not fit into a device's memory is no size that is reserved for it.
        let most = crate::settings::memory();
        let checked = call.memory(|_, bytes| match bytes <= most {
            true => Ok(vec![0; bytes as usize]),
            false => Err(format!("a matrix of {bytes} bytes is larger than the device's memory")),
        });
        if let Err(why) = checked.and_then(|memory| product::check(&call.product, &memory)) {
            return self.refuse(INVALID_VALUE, format!("cuBLASLt: {why}"));
        }
        self.enqueue(stream, Work::Product(Arc::new(call))).map_err(|_| EXECUTION_FAILED)
    }

    /// The memory of a product, once it was looked at.
    pub fn prepare_product(&mut self, device: usize, by: &Toucher<'_>, call: &Call) -> Result<Memory, Problem> {
        for (name, at, bytes, is_read, is_written) in call.operands() {
            let named = |(code, text): Problem| (code, format!("`{name}`: {text}"));
            if is_read {
                self.touch(device, by, at, bytes, Way::Reads).map_err(named)?;
            }
            if is_written {
                self.touch(device, by, at, bytes, Way::Writes).map_err(named)?;
            }
        }
        call.memory(|at, bytes| self.memory.read(device, at, bytes).map_err(illegal))
    }

    /// Writes what a product made.
    pub fn finish_product(
        &mut self,
        device: usize,
        call: &Call,
        found: Result<Arc<[Vec<u8>; 2]>, String>,
    ) -> Result<(), Problem> {
        let found = found.map_err(failed)?;
        let [d, bias] = &*found;
        self.memory.write(device, call.matrices[3], d).map_err(illegal)?;
        if call.vector().is_some_and(|(_, is_written)| is_written) {
            self.memory.write(device, call.bias, bias).map_err(illegal)?;
        }
        if call.workspace.1 > 0 && call.product.workspace > 0 {
            // What the room held is lost.
            let (at, bytes) = call.workspace;
            self.memory.fill(device, at, bytes, crate::memory::POISON).map_err(illegal)?;
        }
        Ok(())
    }
}

/// What calls made, by their bytes.
type Known = HashMap<[u64; 2], Arc<[Vec<u8>; 2]>>;

/// `D` and the vector behind a call; a call whose bytes were seen before is not computed again.
pub fn run(call: &Call, mut memory: Memory) -> Result<Arc<[Vec<u8>; 2]>, String> {
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let key = [1u64, 2].map(|seed| {
        let mut hasher = DefaultHasher::new();
        // All of it is in its text.
        (seed, format!("{:?}", call)).hash(&mut hasher);
        let places = [Some(&memory.a), Some(&memory.b), memory.c.as_ref(), Some(&memory.d), memory.bias.as_ref()];
        places.into_iter().flatten().for_each(|place| place.bytes.hash(&mut hasher));
        hasher.finish()
    });
    if let Some(known) = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(known.clone());
    }
    product::run(&call.product, &mut memory)?;
    let found = Arc::new([memory.d.bytes, memory.bias.map_or(vec![], |bias| bias.bytes)]);
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(key, found.clone());
    Ok(found)
}

/// The element type that CUDA numbers so (`cudaDataType`).
pub fn element(number: u32) -> Option<Element> {
    match number {
        0 => Some(Element::F32),
        1 => Some(Element::F64),
        2 => Some(Element::F16),
        14 => Some(Element::BF16),
        _ => None,
    }
}
