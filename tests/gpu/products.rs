//! Every product of matrices of the ten models, as launch tables describe it to cuBLASLt: the
//! library has an algorithm, its results are those of plain loops in f64, and a second run has the
//! same bits.

use super::card::Card;
use super::cases::products::told as described;
use super::cases::{MODELS, TYPES, programs};
use super::fake::{is_full, is_inside, is_real, told};
use shardc_codegen::matmul::{Compute, Matmul};
use shardc_codegen::program::Kernels;
use shardc_codegen::table::{Work, derive};
use shardc_cublaslt::Operands;
use shardc_cuda_testing::product::{self, Memory, Place, Product};
use shardc_executor::tensor::Tensor;
use shardc_fakecuda::control;
use shardc_gpu::choices::Choices;
use shardc_gpu::device::Device;
use shardc_ir::dtype::DType;
use shardc_ir::reason::Reason;
use shardc_testkit::random::Random;
use std::collections::BTreeMap;

/// Multiplications of a product that is carried out by the software; of larger ones only the
/// description and the candidates are seen there.
const SOFTWARE: u64 = 1 << 24;

/// Results that are held against plain loops, beside the corners.
const PICKS: usize = 256;

/// Every different product, with whether what is added lies apart from the result.
fn products() -> Vec<(Matmul, bool)> {
    let few = [("mlp", "f32"), ("gpt2", "f32"), ("gpt2", "bf16")];
    let mut found = BTreeMap::new();
    for (model, mesh) in MODELS {
        for (dtype, line) in TYPES.into_iter().filter(|(dtype, _)| is_full() || few.contains(&(model, *dtype))) {
            for program in programs(model, mesh, line) {
                let table = derive(&program, &mut Kernels::default());
                for row in table.sections.iter().flat_map(|section| &section.rows) {
                    if let Work::Product { product, added, d, .. } = &row.work {
                        let apart = added.as_ref().is_some_and(|added| added != d);
                        found.insert(format!("{product:?} {apart} {dtype}"), ((**product).clone(), apart));
                    }
                }
            }
        }
    }
    let mut different: Vec<(Matmul, bool)> = vec![];
    found.into_values().for_each(|one| {
        if !different.contains(&one) {
            different.push(one)
        }
    });
    different
}

/// Numbers between -1 and 1; those that are multiplied in TF32 are rounded to it already.
fn drawn(dtype: DType, bytes: u64, is_tf32: bool, random: &mut Random) -> Vec<u8> {
    let elements = bytes / dtype.bytes();
    let values: Vec<f64> = (0..elements).map(|_| random.unit() * 2.0 - 1.0).collect();
    let mut bytes = Tensor::from_f64(&[elements], &values).cast(dtype).bytes;
    if is_tf32 {
        bytes.chunks_exact_mut(4).for_each(|float| (float[0], float[1]) = (0, float[1] & 0xe0));
    }
    bytes
}

/// The memory of a product on the device, and what is there at first.
struct Given {
    product: Product,
    memory: Memory,
    operands: Operands,
}

impl Given {
    fn new(card: &Card, matmul: &Matmul, apart: bool, random: &mut Random) -> Result<Given, Reason> {
        let product = described(matmul);
        let is_tf32 = matmul.compute == Compute::Tf32;
        let mut place = |dtype: DType, bytes: u64, is_tf32: bool| -> Result<Place, Reason> {
            let bytes = drawn(dtype, bytes, is_tf32, random);
            Ok(Place { address: card.gpu.allocate(bytes.len().max(1) as u64)?, bytes })
        };
        let a = place(matmul.a.dtype, product.a.bytes(), is_tf32)?;
        let b = place(matmul.b.dtype, product.b.bytes(), is_tf32)?;
        let c = if apart { Some(place(matmul.c.dtype, product.c.bytes(), false)?) } else { None };
        let d = place(matmul.d.dtype, product.d.bytes(), false)?;
        let bias = matmul.vector().map(|(dtype, length)| place(dtype, length * dtype.bytes(), false)).transpose()?;
        let room = card.gpu.allocate(matmul.workspace.max(1))?;
        let operands = Operands {
            alpha: matmul.alpha,
            beta: matmul.beta,
            a: a.address,
            b: b.address,
            c: c.as_ref().map_or(d.address, |c| c.address),
            d: d.address,
            room,
            room_bytes: matmul.workspace,
        };
        Ok(Given { product, memory: Memory { a, b, c, d, bias, workspace: (room, matmul.workspace) }, operands })
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        let Memory { a, b, c, d, bias, .. } = &self.memory;
        [a, b, d].into_iter().chain(c).chain(bias)
    }

    fn write(&self, card: &Card) -> Result<(), Reason> {
        self.places().try_for_each(|place| card.gpu.write(place.address, &place.bytes, card.stream))
    }

    /// The result and the vector.
    fn read(&self, card: &Card) -> Result<[Vec<u8>; 2], Reason> {
        let read = |place: Option<&Place>| -> Result<Vec<u8>, Reason> {
            let Some(place) = place else { return Ok(vec![]) };
            let mut bytes = vec![0; place.bytes.len()];
            card.gpu.read(place.address, &mut bytes, card.stream)?;
            Ok(bytes)
        };
        Ok([read(Some(&self.memory.d))?, read(self.memory.bias.as_ref())?])
    }

    fn free(&self, card: &Card) -> Result<(), Reason> {
        self.places().try_for_each(|place| card.gpu.free(place.address))?;
        card.gpu.free(self.operands.room)
    }

    /// Holds some results against plain loops.
    fn judge(&self, matmul: &Matmul, [d, vector]: &[Vec<u8>; 2], random: &mut Random) -> Result<(), String> {
        let Given { product, memory, .. } = self;
        let sizes = [product.d.batch, product.d.rows, product.d.columns];
        let corner = |pick: usize| std::array::from_fn(|i| (pick >> i & 1) as u64 * (sizes[i] - 1));
        let picks = (0..8).map(corner).chain((0..PICKS).map(|_| sizes.map(|size| random.below(size as usize) as u64)));
        for at in picks.collect::<Vec<[u64; 3]>>() {
            let want = product::element(product, memory, at);
            near(matmul, product.d.read(d, at), want).map_err(|why| format!("result {at:?} {why}"))?;
        }
        let Some(length) = product.vector() else { return Ok(()) };
        for at in [0, length - 1].into_iter().chain((0..PICKS).map(|_| random.below(length as usize) as u64)) {
            let Some(want) = product::gradient(product, memory, at) else { return Ok(()) };
            let line = product::Layout { rows: length, columns: 1, leading: length as i64, batch: 1, stride: 0, ..product.d };
            near(matmul, line.read(vector, [0, at, 0]), want).map_err(|why| format!("element {at} of the vector {why}"))?;
        }
        Ok(())
    }
}

/// A result is off by its own rounding, and by what sums of that type lose, in any order.
fn near(matmul: &Matmul, found: f64, [want, most]: [f64; 2]) -> Result<(), String> {
    let sums = if matmul.compute == Compute::F64 { 2f64.powi(-44) } else { 2f64.powi(-18) };
    let own = match matmul.d.dtype {
        DType::BF16 => 2f64.powi(-8),
        DType::F16 => 2f64.powi(-11),
        _ => 0.0,
    };
    let allowed = sums * most + own * want.abs() + if matmul.d.dtype == DType::F16 { 2f64.powi(-25) } else { 0.0 };
    if (found - want).abs() <= allowed { Ok(()) } else { Err(format!("is {found}, not {want} (allowed {allowed:.1e})")) }
}

/// Describes a product and, where it is not too large for that, carries it out: whether it was.
fn tried(card: &Card, choices: &mut Choices, matmul: &Matmul, apart: bool, random: &mut Random) -> Result<bool, Reason> {
    let library = card.libraries.cublaslt().ok_or("cuBLASLt is not there")?;
    let product = described(matmul);
    let [[m, k], [_, n]] = product.operands();
    if !is_real() && m * k * n * product.d.batch > SOFTWARE {
        // The description alone: no work is done at this address.
        let bias = if matmul.vector().is_some() { 1 << 30 } else { 0 };
        let candidates = card.gpu.candidates(&library.describe(matmul, bias)?)?;
        return if candidates.is_empty() { Err("no candidates".into()) } else { Ok(false) };
    }
    let given = Given::new(card, matmul, apart, random)?;
    let described = library.describe(matmul, given.memory.bias.as_ref().map_or(0, |bias| bias.address))?;
    given.write(card)?;
    choices.choose(&card.gpu, matmul, &described, &given.operands, card.stream, false)?;
    let algorithm = choices.of(matmul).ok_or("no algorithm was chosen")?;
    let mut found = vec![];
    for _ in 0..2 {
        given.write(card)?;
        card.gpu.multiply(&described, algorithm, &given.operands, card.stream)?;
        card.gpu.synchronize(card.stream)?;
        found.push(given.read(card)?);
    }
    given.free(card)?;
    if found[0] != found[1] {
        return Err("a second run gives other bits".into());
    }
    given.judge(matmul, &found[0], random)?;
    match control::reports().as_str() {
        "" => Ok(true),
        reports => Err(reports.into()),
    }
}

#[test]
fn products_are_computed() {
    if !is_inside("products::products_are_computed", &[]) {
        return;
    }
    let products = products();
    assert!(products.len() > 10, "{} products", products.len());
    let card = Card::open(true);
    let (mut choices, mut random) = (Choices::default(), Random(23));
    let (mut failed, mut done) = (vec![], 0);
    for (matmul, apart) in &products {
        match tried(&card, &mut choices, matmul, *apart, &mut random) {
            Ok(was_done) => done += usize::from(was_done),
            Err(why) => failed.push(format!("{matmul:?}: {why}")),
        }
    }
    assert!(failed.is_empty(), "{} of {} products fail\n{}", failed.len(), products.len(), failed.join("\n"));
    assert!(done > 0, "no product was carried out");
    let larger = products.len() - done;
    let larger = if larger > 0 { format!("; {larger} larger ones have candidates") } else { String::new() };
    told(&format!("{} different products, {done} carried out twice{larger}", products.len()));
}
