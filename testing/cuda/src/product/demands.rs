//! What the manual demands of a call, and what is refused beside: reduction schemes by which parts
//! of a sum meet in the result, where bits may follow from the order of blocks or are rounded
//! twice, and what the manual says nothing of.

use super::{Compute, Element, Epilogue, Layout, Memory, Place, Product};

/// The workspace begins at a multiple of so many bytes (`cublasLtMatmul`).
const WORKSPACE: u64 = 256;

/// The scheme by which parts of a sum meet in the workspace, in the type in which they were summed
/// (`CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`).
const IN_ROOM: u32 = 2;

/// Holds a call against its demands.
///
/// # Errors
/// The first that it does not fulfil, in words.
pub fn check(product: &Product, memory: &Memory) -> Result<(), String> {
    types(product)?;
    let layouts = [("A", &product.a), ("B", &product.b), ("C", &product.c), ("D", &product.d)];
    for (name, layout) in layouts {
        lies(name, layout)?;
    }
    shapes(product)?;
    let c = memory.c.as_ref().unwrap_or(&memory.d);
    let places = [&memory.a, &memory.b, c, &memory.d];
    for ((name, layout), (place, alignment)) in layouts.into_iter().zip(places.into_iter().zip(product.alignment)) {
        holds(name, place, layout.element, layout.reach())?;
        if !alignment.is_power_of_two() || !place.address.is_multiple_of(alignment) {
            return Err(format!("`{name}` begins at {:#x}, which is no multiple of {alignment} bytes", place.address));
        }
    }
    if memory.c.is_none() && product.c != product.d {
        return Err("`C` is `D` with another layout".into());
    }
    distinct(&product.d)?;
    epilogue(product, memory)?;
    apart(product, memory)?;
    if product.reductions & !IN_ROOM != 0 {
        return Err(format!(
            "reduction schemes {:#x} are allowed, where parts of sums meet in the workspace only",
            product.reductions
        ));
    }
    let (address, bytes) = memory.workspace;
    if bytes < product.workspace {
        return Err(format!("the workspace has {bytes} bytes of the {} that may be used", product.workspace));
    }
    if !address.is_multiple_of(WORKSPACE) {
        return Err(format!("the workspace begins at {address:#x}, which is no multiple of {WORKSPACE} bytes"));
    }
    Ok(())
}

/// The table of types of `cublasLtMatmul`.
fn types(product: &Product) -> Result<(), String> {
    use Element::{BF16, F16, F32, F64};
    let (operand, result) = (product.a.element, product.d.element);
    let is_known = match (product.compute, product.scale) {
        (Compute::F32, F32) => matches!((operand, result), (F32 | BF16 | F16, F32) | (BF16, BF16) | (F16, F16)),
        (Compute::Tf32, F32) => (operand, result) == (F32, F32),
        (Compute::F64, F64) => (operand, result) == (F64, F64),
        _ => false,
    };
    if !is_known || product.b.element != operand || product.c.element != result {
        let [a, b, c, d] = [&product.a, &product.b, &product.c, &product.d].map(|layout| layout.element);
        let (compute, scale) = (product.compute, product.scale);
        return Err(format!("no product of {a:?} and {b:?} with {c:?} becomes {d:?} in {compute:?} with scales of {scale:?}"));
    }
    if product.bias.is_some_and(|bias| bias != result) {
        return Err(format!("the bias is {:?} where results are {result:?}", product.bias));
    }
    Ok(())
}

/// `cublasLtMatrixLayoutAttribute_t`.
fn lies(name: &str, layout: &Layout) -> Result<(), String> {
    let counts = [layout.rows, layout.columns, layout.batch];
    if counts.contains(&0) {
        return Err(format!("`{name}` is empty"));
    }
    if counts.iter().any(|count| i32::try_from(*count).is_err()) {
        return Err(format!("a size of `{name}` is no 32-bit integer: {counts:?}"));
    }
    if layout.leading < layout.rows as i64 {
        return Err(format!("the leading dimension of `{name}` is {}, less than its {} rows", layout.leading, layout.rows));
    }
    if layout.stride < 0 {
        return Err(format!("the batch of `{name}` goes backwards"));
    }
    Ok(())
}

fn shapes(product: &Product) -> Result<(), String> {
    let ([[m, k], [terms, n]], d) = (product.operands(), &product.d);
    if k != terms || [m, n] != [d.rows, d.columns] {
        return Err(format!("{m} x {k} by {terms} x {n} is no {} x {}", d.rows, d.columns));
    }
    if [product.c.rows, product.c.columns] != [d.rows, d.columns] {
        return Err("`C` has not the rows and columns of `D`".into());
    }
    if [&product.a, &product.b, &product.c].iter().any(|layout| layout.batch != d.batch) {
        return Err("the batches differ".into());
    }
    Ok(())
}

/// Bounds of memory that elements reach into, and their own alignment.
fn holds(name: &str, place: &Place, element: Element, reach: i128) -> Result<(), String> {
    let (bytes, found) = (reach * i128::from(element.bytes()), place.bytes.len());
    if bytes > found as i128 {
        return Err(format!("`{name}` reaches over {bytes} bytes, and has {found}"));
    }
    if !place.address.is_multiple_of(element.bytes()) {
        return Err(format!("`{name}` begins at {:#x}, within an element", place.address));
    }
    Ok(())
}

/// That no element of `D` is two results.
fn distinct(d: &Layout) -> Result<(), String> {
    // It was held against the bytes that are there.
    let mut seen = vec![false; d.reach() as usize];
    for matrix in 0..d.batch as usize {
        for column in 0..d.columns as usize {
            let start = matrix * d.stride as usize + column * d.leading as usize;
            for seen in &mut seen[start..start + d.rows as usize] {
                if std::mem::replace(seen, true) {
                    return Err(format!("results of `D` share elements: matrix {matrix}, column {column}"));
                }
            }
        }
    }
    Ok(())
}

/// `cublasLtEpilogue_t`, and `CUBLASLT_MATMUL_DESC_BIAS_POINTER`. That gradients of a bias are made
/// of an `A` that is not transposed, or a `B` that is, is known to NVIDIA's tests of nvmath-python
/// (`skip_test_epilogues`).
fn epilogue(product: &Product, memory: &Memory) -> Result<(), String> {
    let Some(length) = product.vector() else { return Ok(()) };
    let bias = memory.bias.as_ref().ok_or("the epilogue's vector is null")?;
    let between = i128::from(product.d.batch - 1) * i128::from(product.bias_stride);
    if product.bias_stride < 0 {
        return Err("the batch of the bias goes backwards".into());
    }
    holds("bias", bias, product.d.element, i128::from(length) + between)?;
    match product.epilogue {
        Epilogue::BiasGradientA if product.transposed[0] => return Err("a bias gradient of an `A` that is transposed".into()),
        Epilogue::BiasGradientB if !product.transposed[1] => return Err("a bias gradient of a `B` that is not transposed".into()),
        Epilogue::Default | Epilogue::Bias => return Ok(()),
        Epilogue::BiasGradientA | Epilogue::BiasGradientB => {}
    }
    if product.alpha != 1.0 {
        return Err("a bias gradient of a scaled product, of which the manual says nothing".into());
    }
    if product.d.batch > 1 && product.bias_stride < length as i64 {
        return Err("bias gradients of a batch share elements".into());
    }
    Ok(())
}

/// That what is written is no other memory of the call.
fn apart(product: &Product, memory: &Memory) -> Result<(), String> {
    let range = |place: &Place| (place.address, place.bytes.len() as u64);
    let gradient = memory.bias.iter().filter(|_| product.epilogue != Epilogue::Bias && product.vector().is_some());
    let written = [("D", range(&memory.d))].into_iter().chain(gradient.map(|bias| ("bias", range(bias))));
    let mut all = vec![("A", range(&memory.a)), ("B", range(&memory.b)), ("D", range(&memory.d))];
    all.extend(memory.c.iter().map(|c| ("C", range(c))));
    all.extend(memory.bias.iter().filter(|_| product.vector().is_some()).map(|bias| ("bias", range(bias))));
    all.push(("workspace", memory.workspace));
    for (name, (start, bytes)) in written {
        let touches = |(_, (other, length)): &&(&str, (u64, u64))| start < other + length && *other < start + bytes;
        if let Some((other, _)) = all.iter().filter(|(other, _)| *other != name).find(touches) {
            return Err(format!("`{name}` is written and lies in the memory of `{other}`"));
        }
    }
    Ok(())
}
