//! Contractions as calls of cuBLASLt: plain loops that refuse what its manual refuses carry them
//! out, with the results of the contraction's own loops; and where the library is found, it knows
//! every attribute of those that plans have.

use super::kernels::products::told;
use super::{ELEMENTS, MODELS, TYPES, is_tried, programs, reduced};
use shardc_codegen::matmul::{Epilogue, Matmul};
use shardc_cublaslt::Library;
use shardc_cuda_testing::product::{self, Place};
use shardc_executor::tensor::Tensor;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Contract, ContractDim, Form, Kernel, Map, MapInput, Reduce};
use shardc_ir::mesh::Mesh;
use shardc_ir::plan::{Program, Step, View};
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Instr, ScalarProgram};
use shardc_testkit::random::Random;
use shardc_testkit::reference;
use std::collections::{BTreeMap, BTreeSet};

/// Random contractions that are tried, and the least that are products.
const DRAWS: (u64, usize) = (4000, 1000);

/// Numbers that a type holds, and their bytes.
fn drawn(dtype: DType, elements: u64, random: &mut Random) -> (Vec<f64>, Vec<u8>) {
    let values: Vec<f64> = (0..elements).map(|_| random.unit() * 2.0 - 1.0).collect();
    let tensor = Tensor::from_f64(&[elements], &values).cast(dtype);
    (tensor.to_f64(), tensor.bytes)
}

fn floats(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    Tensor { dtype, shape: vec![], bytes: bytes.to_vec() }.to_f64()
}

/// What a call reads and writes: `a`, `b`, the matrix that is added to and the vector, then `D`.
struct Operands<'o> {
    a: &'o [u8],
    b: &'o [u8],
    c: Option<&'o [u8]>,
    vector: Option<&'o [u8]>,
    d: &'o [u8],
}

/// `D` and the vector after a call.
fn called(matmul: &Matmul, operands: &Operands<'_>) -> Result<(Vec<u8>, Vec<u8>), String> {
    // Each in a gigabyte of its own.
    let place = |number: u64, bytes: &[u8]| Place { address: number << 30, bytes: bytes.to_vec() };
    let [a, b] = if matmul.swapped { [operands.b, operands.a] } else { [operands.a, operands.b] };
    let mut memory = product::Memory {
        a: place(1, a),
        b: place(2, b),
        c: operands.c.map(|bytes| place(3, bytes)),
        d: place(4, operands.d),
        bias: operands.vector.map(|bytes| place(5, bytes)),
        workspace: (6 << 30, matmul.workspace),
    };
    product::run(&told(matmul), &mut memory)?;
    Ok((memory.d.bytes, memory.bias.map_or(vec![], |place| place.bytes)))
}

/// Half of the distance between a number of a type and the next, in part of it; and some for sums
/// in f64 in another order.
fn rounding(dtype: DType) -> f64 {
    let bits = match dtype {
        DType::F64 => 45,
        DType::F32 => 24,
        DType::BF16 => 8,
        DType::F16 => 11,
        DType::I64 | DType::Bool => panic!("{dtype} is no float"),
    };
    1.0001 * 2f64.powi(-bits)
}

/// Holds results against those in f64 of which they are the nearest.
fn near(dtype: DType, found: &[u8], want: &[f64]) -> Result<(), String> {
    for (i, (found, want)) in floats(dtype, found).into_iter().zip(want).enumerate() {
        let tiny = if dtype == DType::F16 { 2f64.powi(-25) } else { 1e-14 };
        if (found - want).abs() > rounding(dtype) * want.abs() + tiny {
            return Err(format!("result {i} is {found}, not {want}"));
        }
    }
    Ok(())
}

/// Holds a contraction that is a product against its own loops.
fn judge(contract: &Contract, random: &mut Random) -> Result<Matmul, String> {
    let matmul = Matmul::of(contract)?;
    let signature = contract.signature(&Mesh::new([], 1)).map_err(|e| e.to_string())?;
    let (a, a_bytes) = drawn(contract.dtype, signature.reads[0].elements, random);
    let (b, b_bytes) = drawn(contract.dtype, signature.reads[1].elements, random);
    let (before, d) = drawn(contract.result, signature.writes[0].elements, random);
    let want = reference::run(&Kernel::Contract(contract.clone()), &[a, b], vec![before], &[]);
    let operands = Operands { a: &a_bytes, b: &b_bytes, c: None, vector: None, d: &d };
    let (found, _) = called(&matmul, &operands).unwrap_or_else(|why| panic!("{contract:?}\n{matmul:?}\n{why}"));
    near(contract.result, &found, &want[0]).unwrap_or_else(|why| panic!("{contract:?}\n{matmul:?}\n{why}"));
    Ok(matmul)
}

/// A contraction over up to two letters of each kind, in any order in each operand.
fn contraction(random: &mut Random) -> Contract {
    let (dtype, result) = random
        .pick(&[
            (DType::F64, DType::F64),
            (DType::F32, DType::F32),
            (DType::BF16, DType::BF16),
            (DType::BF16, DType::F32),
            (DType::F16, DType::F16),
            (DType::F16, DType::F32),
        ])
        .unwrap();
    // Batch, rows, columns and the sum, and which operands have them.
    let has = [[true; 3], [true, false, true], [false, true, true], [true, true, false]];
    let mut letters: Vec<(usize, ContractDim)> = vec![];
    for group in 0..4 {
        for _ in 0..random.pick(&[0, 1, 1, 1, 2]).unwrap() {
            let size = random.pick(&[1, 2, 3, 5, 8]).unwrap();
            letters.push((group, ContractDim { size, a: 0, b: 0, c: 0 }));
        }
    }
    let strides: [fn(&mut ContractDim) -> &mut i64; 3] = [|dim| &mut dim.a, |dim| &mut dim.b, |dim| &mut dim.c];
    for (operand, stride) in strides.into_iter().enumerate() {
        let mut own: Vec<usize> = (0..letters.len()).filter(|i| has[letters[*i].0][operand]).collect();
        if random.below(2) == 0 {
            (1..own.len()).for_each(|i| own.swap(i, random.below(i + 1)));
        }
        let mut step = random.pick(&[1, 1, 1, 1, 1, 1, 1, 2]).unwrap();
        for i in own.into_iter().rev() {
            let (group, dim) = &mut letters[i];
            // A batch may read one matrix many times.
            let is_once = operand < 2 && *group == 0 && random.below(6) == 0;
            *stride(dim) = if is_once { 0 } else { step };
            step *= dim.size as i64;
            step += random.pick(&[0, 0, 0, 0, 3]).unwrap();
        }
    }
    let group = |number: usize| letters.iter().filter(|(group, _)| *group == number).map(|(_, dim)| *dim).collect();
    Contract { dtype, result, batch: group(0), m: group(1), n: group(2), k: group(3) }
}

#[test]
fn products_are_their_contractions() {
    let mut random = Random(7);
    let (mut ways, mut refused, mut taken) = (BTreeSet::new(), BTreeMap::<String, usize>::new(), 0);
    for _ in 0..DRAWS.0 {
        match judge(&contraction(&mut random), &mut random) {
            Ok(matmul) => {
                taken += 1;
                ways.insert((matmul.swapped, matmul.transposed, matmul.d.batch > 1, matmul.a.stride == 0));
            }
            // Numbers do not count.
            Err(why) => *refused.entry(why.replace(|c: char| c.is_ascii_digit(), "")).or_default() += 1,
        }
    }
    eprintln!("{taken} products in {} ways; refused: {refused:#?}", ways.len());
    assert!(taken >= DRAWS.1, "{taken} of {} contractions are products", DRAWS.0);
    // Swapped or not, each of the operands transposed or not, one product or a batch, of one `A` or
    // many.
    assert_eq!(ways.len(), 24, "{ways:?}");
    assert!(refused.keys().any(|why| why.contains("letters")) && refused.keys().any(|why| why.contains("neighbours")));
}

/// `bk,kn->bn` for 6, 4 and 5 of `b`, `n` and `k`, with the first letter in two parts.
fn linear(dtype: DType) -> Contract {
    let dim = |size, a, b, c| ContractDim { size, a, b, c };
    let m = vec![dim(2, 15, 0, 12), dim(3, 5, 0, 4)];
    Contract { dtype, result: dtype.computed(), batch: vec![], m, n: vec![dim(4, 0, 1, 1)], k: vec![dim(5, 1, 4, 0)] }
}

/// `product + other`, over its result.
fn sum(dtype: DType, other: [i64; 3]) -> Map {
    let mut code = vec![Instr::Binary(Binary::Add, 1, 0)];
    code.extend(dtype.rounding().map(|to| Instr::Round(to, 2)));
    let outputs = vec![1 + code.len() as u16];
    let input = |dtype, strides: [i64; 3]| MapInput { dtype, strides: strides.to_vec() };
    Map {
        compute: dtype.computed(),
        shape: vec![2, 3, 4],
        inputs: vec![input(dtype.computed(), [12, 4, 1]), input(dtype, other)],
        program: ScalarProgram { inputs: 2, code, outputs },
        outputs: vec![dtype],
        origins: vec![],
    }
}

#[test]
fn epilogues_are_the_kernels_that_they_replace() {
    let mut random = Random(11);
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        let contract = linear(dtype);
        let plain = Matmul::of(&contract).unwrap();
        let (a, a_bytes) = drawn(dtype, 30, &mut random);
        let (b, b_bytes) = drawn(dtype, 20, &mut random);
        let (d, zeros) = (vec![0; 24 * dtype.bytes() as usize], vec![0.0; 24]);
        let want =
            reference::run(&Kernel::Contract(contract.clone()), &[a.clone(), b.clone()], vec![zeros.clone()], &[]).remove(0);
        let added = |map: &Map, other: &[f64]| {
            // Results are rounded by the comparison.
            let code = vec![map.program.code[0]];
            let map = Map { program: ScalarProgram { inputs: 2, code, outputs: vec![2] }, ..map.clone() };
            reference::run(&Kernel::Map(map), &[want.clone(), other.to_vec()], vec![zeros.clone()], &[]).remove(0)
        };
        let (vector, vector_bytes) = drawn(dtype, 4, &mut random);
        let map = sum(dtype, [0, 0, 1]);
        let with = plain.with_bias(&map, 0).unwrap();
        assert_eq!((with.epilogue, with.vector()), (Epilogue::Bias, Some((dtype, 4))));
        let operands = Operands { a: &a_bytes, b: &b_bytes, c: None, vector: Some(&vector_bytes), d: &d };
        near(dtype, &called(&with, &operands).unwrap().0, &added(&map, &vector)).unwrap();

        let (matrix, matrix_bytes) = drawn(dtype, 24, &mut random);
        let map = sum(dtype, [12, 4, 1]);
        let with = plain.accumulating(&map, 0).unwrap();
        let want = added(&map, &matrix);
        let apart = Operands { c: Some(&matrix_bytes), vector: None, ..operands };
        near(dtype, &called(&with, &apart).unwrap().0, &want).unwrap();
        let in_place = Operands { c: None, d: &matrix_bytes, ..apart };
        near(dtype, &called(&with, &in_place).unwrap().0, &want).unwrap();
    }
}

/// The gradient of `linear`'s second operand, from its first one and the gradient of its result:
/// that lies as `bn` or `nb` in memory of the result.
fn weight(dtype: DType, is_turned: bool) -> Contract {
    let dim = |size, a, b, c| ContractDim { size, a, b, c };
    let [k, n] = if is_turned { [dim(5, 1, 0, 1), dim(4, 0, 1, 5)] } else { [dim(5, 1, 0, 4), dim(4, 0, 1, 1)] };
    let sum = vec![dim(2, 15, 12, 0), dim(3, 5, 4, 0)];
    Contract { dtype, result: dtype.computed(), batch: vec![], m: vec![k], n: vec![n], k: sum }
}

/// The sum of the second operand of [`weight`] over all but its last letter.
fn gradient(dtype: DType) -> Reduce {
    let map = Map {
        compute: dtype.computed(),
        shape: vec![2, 3, 4],
        inputs: vec![MapInput { dtype, strides: vec![12, 4, 1] }],
        program: ScalarProgram::identity(),
        outputs: vec![dtype.computed()],
        origins: vec![],
    };
    Reduce { map, kind: ReduceKind::Sum, reduced: vec![true, true, false], accumulate: dtype.computed() }
}

#[test]
fn gradients_of_biases_are_sums_of_operands() {
    let mut random = Random(13);
    for (dtype, is_turned) in [(DType::F64, false), (DType::F32, true), (DType::BF16, false), (DType::F16, true)] {
        let (contract, reduce) = (weight(dtype, is_turned), gradient(dtype));
        let with = Matmul::of(&contract).unwrap().with_bias_gradient(&contract, 1, &reduce).unwrap();
        assert_eq!(with.epilogue, if is_turned { Epilogue::BiasGradientB } else { Epilogue::BiasGradientA });
        let (a, a_bytes) = drawn(dtype, 30, &mut random);
        let (b, b_bytes) = drawn(dtype, 24, &mut random);
        let bytes = dtype.computed().bytes() as usize;
        let (d, vector) = (vec![0; 20 * bytes], vec![0; 4 * bytes]);
        let operands = Operands { a: &a_bytes, b: &b_bytes, c: None, vector: Some(&vector), d: &d };
        let (found, gradient) = called(&with, &operands).unwrap();
        let sums = reference::run(&Kernel::Reduce(reduce), std::slice::from_ref(&b), vec![vec![0.0; 4]], &[]);
        let want = reference::run(&Kernel::Contract(contract), &[a, b], vec![vec![0.0; 20]], &[]);
        near(dtype.computed(), &found, &want[0]).unwrap();
        near(dtype.computed(), &gradient, &sums[0]).unwrap();
    }
}

#[test]
fn what_no_epilogue_does_is_left_to_its_kernel() {
    let plain = Matmul::of(&linear(DType::F32)).unwrap();
    let bias = sum(DType::F32, [0, 0, 1]);
    assert!(plain.with_bias(&bias, 0).is_some());
    let wrong: [fn(&mut Map); 12] = [
        |map| map.inputs[1].strides = vec![0, 1, 0],
        |map| map.inputs[1].strides = vec![0, 0, 2],
        |map| map.inputs[1].strides = vec![4, 0, 1],
        |map| map.inputs[1].strides = vec![0, 0, 0],
        |map| map.inputs[1].dtype = DType::BF16,
        |map| map.outputs[0] = DType::BF16,
        |map| map.inputs[0].strides = vec![4, 8, 1],
        |map| map.shape[0] = 1,
        |map| map.program.code[0] = Instr::Binary(Binary::Mul, 0, 1),
        |map| map.program.code.push(Instr::Binary(Binary::Add, 2, 1)),
        |map| map.program.outputs[0] = 0,
        |map| map.compute = DType::F64,
    ];
    for (number, change) in wrong.iter().enumerate() {
        let mut map = bias.clone();
        change(&mut map);
        assert_eq!(plain.with_bias(&map, 0), None, "{number}");
    }
    // The second input has the vector's strides.
    assert_eq!(plain.with_bias(&bias, 1), None);
    assert_eq!(plain.accumulating(&bias, 0), None);
    assert_eq!(plain.with_bias(&bias, 0).unwrap().with_bias(&bias, 0), None);
    // A vector in f32 is none of the epilogue's where results are bf16.
    let mut half = sum(DType::BF16, [0, 0, 1]);
    let product = Matmul::of(&linear(DType::BF16)).unwrap();
    assert!(product.with_bias(&half, 0).is_some());
    half.inputs[1].dtype = DType::F32;
    assert_eq!(product.with_bias(&half, 0), None);
    // A product that is rounded to bf16 before is not the one that the epilogue adds to.
    let rounded = Matmul::of(&Contract { result: DType::BF16, ..linear(DType::BF16) }).unwrap();
    half.inputs.iter_mut().for_each(|input| input.dtype = DType::BF16);
    assert_eq!(rounded.with_bias(&half, 0), None);

    let (contract, reduce) = (weight(DType::F32, false), gradient(DType::F32));
    let plain = Matmul::of(&contract).unwrap();
    let wrong: [fn(&mut Reduce); 6] = [
        |reduce| reduce.kind = ReduceKind::Max,
        |reduce| reduce.reduced = vec![true, false, false],
        |reduce| reduce.map.inputs[0].strides = vec![12, 8, 1],
        |reduce| reduce.map.outputs[0] = DType::F64,
        |reduce| reduce.accumulate = DType::F64,
        |reduce| reduce.map.program.code.push(Instr::Const(1.0)),
    ];
    for (number, change) in wrong.iter().enumerate() {
        let mut reduce = reduce.clone();
        change(&mut reduce);
        assert_eq!(plain.with_bias_gradient(&contract, 1, &reduce), None, "{number}");
    }
    assert_eq!(plain.with_bias_gradient(&contract, 0, &reduce), None);
    // Sums over neighbours: of an `A` that is transposed, and of a `B` that is not.
    let dim = |size, a, b, c| ContractDim { size, a, b, c };
    let contract = Contract { n: vec![dim(4, 0, 5, 1)], k: vec![dim(5, 1, 1, 0)], ..linear(DType::F32) };
    let plain = Matmul::of(&contract).unwrap();
    assert_eq!((plain.swapped, plain.transposed), (true, [true, false]));
    for (operand, rows) in [(1, 4), (0, 6)] {
        let mut across = Reduce { reduced: vec![false, true], ..reduce.clone() };
        (across.map.shape, across.map.inputs[0].strides) = (vec![rows, 5], vec![5, 1]);
        assert_eq!(plain.with_bias_gradient(&contract, operand, &across), None);
    }
}

/// The contractions of plans, as products, with the kernels beside that they carry out.
#[derive(Default)]
struct Found {
    /// Different products.
    all: BTreeMap<String, (Matmul, Contract)>,
    /// Steps with a contraction; with a vector, a matrix or a sum beside.
    steps: [usize; 4],
    /// Why a contraction is no product.
    refused: Vec<String>,
}

impl Found {
    fn add(&mut self, program: &Program) {
        let steps: Vec<&Step> = program.tasks.iter().flat_map(|task| &task.steps).collect();
        for (at, step) in steps.iter().enumerate() {
            let Kernel::Contract(contract) = &step.kernel else { continue };
            self.steps[0] += 1;
            let plain = match Matmul::of(contract) {
                Ok(matmul) => matmul.aligned([16; 3]),
                Err(why) => {
                    self.refused.push(format!("{}: {why}", program.text_of(step)));
                    continue;
                }
            };
            let is_it = |view: &View, of: &View| (view.buffer, view.offset) == (of.buffer, of.offset);
            let behind = steps[at + 1..].iter().find(|other| other.reads.iter().any(|view| is_it(view, &step.writes[0])));
            let adds = behind.and_then(|other| {
                let Kernel::Map(map) = &other.kernel else { return None };
                let product = other.reads.iter().position(|view| is_it(view, &step.writes[0]))?;
                let with = |kind: usize, found: Option<Matmul>| found.map(|matmul| (kind, matmul));
                with(1, plain.with_bias(map, product)).or_else(|| with(2, plain.accumulating(map, product)))
            });
            let sums = steps.iter().find_map(|other| {
                let Kernel::Reduce(reduce) = &other.kernel else { return None };
                let operand = step.reads.iter().position(|view| is_it(view, &other.reads[0]))?;
                Some((3, plain.with_bias_gradient(contract, operand, reduce)?))
            });
            for (kind, matmul) in [Some((0, plain)), adds, sums].into_iter().flatten() {
                self.steps[kind] += usize::from(kind > 0);
                self.all.entry(format!("{matmul:?}")).or_insert_with(|| (matmul, contract.clone()));
            }
        }
    }
}

#[test]
fn contractions_of_plans_are_products_that_cublaslt_knows() {
    let library = Library::open();
    match &library {
        Ok(library) => eprintln!("cuBLASLt {:?}", library.version()),
        Err(why) => eprintln!("skipped: products are not described: {why}"),
    }
    let (mut different, mut random) = (BTreeMap::new(), Random(17));
    for (model, mesh) in MODELS.into_iter().chain([("gpt2-folded", "dp=1")]) {
        for (dtype, line) in TYPES.into_iter().filter(|(dtype, _)| is_tried(model, dtype)) {
            let mut found = Found::default();
            programs(model, mesh, line).iter().for_each(|program| found.add(program));
            let [steps, vectors, matrices, sums] = found.steps;
            eprintln!(
                "{model} in {dtype}: {steps} contractions; {vectors} add a vector, {matrices} a matrix, {sums} sum an operand"
            );
            assert!(found.refused.is_empty(), "{model} in {dtype}: {:#?}", found.refused);
            assert!(steps > 0, "{model} in {dtype} has no contraction");
            different.append(&mut found.all);
        }
    }
    for (matmul, contract) in different.values() {
        if let Ok(library) = &library {
            let bias = if matmul.vector().is_some() { 1 << 30 } else { 0 };
            let described = library.describe(matmul, bias).unwrap_or_else(|why| panic!("{matmul:?}: {why}"));
            described.check(matmul, bias).unwrap_or_else(|why| panic!("{matmul:?}: {why}"));
        }
        if matmul.epilogue == Epilogue::Default && matmul.beta == 0.0 {
            let small = reduced::sizes(&Kernel::Contract(contract.clone()), ELEMENTS / 16);
            for kernel in &small {
                let Kernel::Contract(contract) = kernel else { continue };
                judge(contract, &mut random).unwrap();
            }
        }
    }
    eprintln!("{} different products", different.len());
}

#[test]
fn cublaslt_tells_of_what_it_does_not_keep() {
    let Ok(library) = Library::open() else { return eprintln!("skipped: no cuBLASLt") };
    let matmul = Matmul::of(&linear(DType::F32)).unwrap();
    let described = library.describe(&matmul, 0).unwrap();
    let other = Matmul { transposed: [true; 2], ..matmul.clone() };
    let why = described.check(&other, 0).unwrap_err();
    assert!(why.contains("CUBLASLT_MATMUL_DESC_TRANSA of the product"), "{why}");
    let mut other = matmul.clone();
    other.b.leading += 1;
    let why = described.check(&other, 0).unwrap_err();
    assert!(why.contains("CUBLASLT_MATRIX_LAYOUT_LD of `B`"), "{why}");
    let mut other = matmul;
    other.a.dtype = DType::I64;
    assert_eq!(library.describe(&other, 0).unwrap_err(), "cuBLASLt takes no i64");
}
