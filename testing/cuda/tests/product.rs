//! Calls of `cublasLtMatmul` by plain loops: what they compute, and each thing that they refuse.

use shardc_cuda_testing::product::{Compute, Element, Epilogue, Layout, Memory, Place, Product, run};

/// Column by column, without room between columns or matrices.
fn dense(element: Element, rows: u64, columns: u64, batch: u64) -> Layout {
    Layout { element, rows, columns, leading: rows as i64, batch, stride: (rows * columns) as i64 }
}

/// `D = A * B` in f32.
fn product([m, n, k]: [u64; 3], batch: u64) -> Product {
    let of = |rows, columns| dense(Element::F32, rows, columns, batch);
    Product {
        compute: Compute::F32,
        scale: Element::F32,
        alpha: 1.0,
        beta: 0.0,
        transposed: [false; 2],
        a: of(m, k),
        b: of(k, n),
        c: of(m, n),
        d: of(m, n),
        epilogue: Epilogue::Default,
        bias: None,
        bias_stride: 0,
        reductions: 0,
        workspace: 1024,
        alignment: [16; 4],
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn values(place: &Place) -> Vec<f32> {
    place.bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes"))).collect()
}

/// Operands of small whole numbers, which sums of products are exact of.
fn memory(product: &Product) -> Memory {
    let place = |number: u64, layout: &Layout| {
        let elements = layout.batch * layout.rows * layout.columns;
        let values: Vec<f32> = (0..elements).map(|i| ((i * 7 + number) % 11) as f32 - 5.0).collect();
        Place { address: number << 20, bytes: floats(&values) }
    };
    let d = place(3, &product.d);
    let bias = Place { address: 4 << 20, bytes: floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) };
    Memory { a: place(1, &product.a), b: place(2, &product.b), c: None, d, bias: Some(bias), workspace: (5 << 20, 1024) }
}

#[test]
fn a_product_is_what_its_definition_says() {
    // [1 3; 2 4] and [5 7; 6 8], column by column.
    let mut call = product([2, 2, 2], 1);
    let start = Memory {
        a: Place { address: 1 << 20, bytes: floats(&[1.0, 2.0, 3.0, 4.0]) },
        b: Place { address: 2 << 20, bytes: floats(&[5.0, 6.0, 7.0, 8.0]) },
        d: Place { address: 3 << 20, bytes: floats(&[f32::NAN; 4]) },
        bias: Some(Place { address: 4 << 20, bytes: floats(&[100.0, 200.0]) }),
        ..memory(&call)
    };
    let of = |call: &Product| {
        let mut memory = start.clone();
        run(call, &mut memory).expect("a product");
        (values(&memory.d), values(&memory.bias.expect("a vector")))
    };
    assert_eq!(of(&call), (vec![23.0, 34.0, 31.0, 46.0], vec![100.0, 200.0]));
    call.transposed = [true, false];
    assert_eq!(of(&call).0, [17.0, 39.0, 23.0, 53.0]);
    call.transposed = [false, true];
    assert_eq!(of(&call).0, [26.0, 38.0, 30.0, 44.0]);
    call.epilogue = Epilogue::Bias;
    assert_eq!(of(&call).0, [126.0, 238.0, 130.0, 244.0]);
    // The sums over the columns of `A`, and over the rows of the transposed `B`.
    call.epilogue = Epilogue::BiasGradientA;
    assert_eq!(of(&call), (vec![26.0, 38.0, 30.0, 44.0], vec![4.0, 6.0]));
    call.epilogue = Epilogue::BiasGradientB;
    assert_eq!(of(&call), (vec![26.0, 38.0, 30.0, 44.0], vec![12.0, 14.0]));
}

#[test]
fn what_is_there_is_added_to() {
    let mut call = product([2, 1, 1], 1);
    (call.alpha, call.beta) = (2.0, 3.0);
    let mut memory = Memory {
        a: Place { address: 1 << 20, bytes: floats(&[1.0, 2.0]) },
        b: Place { address: 2 << 20, bytes: floats(&[10.0]) },
        d: Place { address: 3 << 20, bytes: floats(&[7.0, 9.0]) },
        ..memory(&call)
    };
    run(&call, &mut memory).expect("a product");
    assert_eq!(values(&memory.d), [41.0, 67.0]);
    memory.c = Some(Place { address: 6 << 20, bytes: floats(&[-1.0, 1.0]) });
    run(&call, &mut memory).expect("a product");
    assert_eq!(values(&memory.d), [17.0, 43.0]);
}

/// The sum of some numbers, by a product with ones.
fn sum(element: Element, compute: Compute, terms: &[u8], one: &[u8]) -> Vec<u8> {
    let k = terms.len() as u64 / element.bytes();
    let mut call = Product { compute, ..product([1, 1, k], 1) };
    [call.a.element, call.b.element, call.c.element, call.d.element] = [element; 4];
    let place = |number: u64, bytes: Vec<u8>| Place { address: number << 20, bytes };
    let (a, b, d) = (terms.to_vec(), one.repeat(k as usize), vec![0; one.len()]);
    let mut memory = Memory { a: place(1, a), b: place(2, b), d: place(3, d), ..memory(&product([1, 1, k], 1)) };
    run(&call, &mut memory).expect("a sum");
    memory.d.bytes
}

#[test]
fn results_are_rounded_once() {
    let bf16 = |terms: &[u16]| {
        let terms: Vec<u8> = terms.iter().flat_map(|term| term.to_le_bytes()).collect();
        let found = sum(Element::BF16, Compute::F32, &terms, &0x3f80u16.to_le_bytes());
        u16::from_le_bytes([found[0], found[1]])
    };
    // 1 + 2^-8 lies in the middle between 1 and the next number, 2^-36 more does not; f32 has no 37
    // bits.
    assert_eq!(bf16(&[0x3f80, 0x3b80]), 0x3f80);
    assert_eq!(bf16(&[0x3f80, 0x3b80, 0x2d80]), 0x3f81);
    assert_eq!(bf16(&[0xbf80, 0xbb80, 0xad80]), 0xbf81);
    assert_eq!(bf16(&[0x3f80, 0x7f80]), 0x7f80);
    let f16 = |terms: &[u16]| {
        let terms: Vec<u8> = terms.iter().flat_map(|term| term.to_le_bytes()).collect();
        let found = sum(Element::F16, Compute::F32, &terms, &0x3c00u16.to_le_bytes());
        u16::from_le_bytes([found[0], found[1]])
    };
    // 1 + 2^-11, and 2^-24 more.
    assert_eq!(f16(&[0x3c00, 0x1000]), 0x3c00);
    assert_eq!(f16(&[0x3c00, 0x1000, 0x0001]), 0x3c01);
    let f32 = |compute: Compute, terms: &[f32]| {
        let found = sum(Element::F32, compute, &floats(terms), &1f32.to_le_bytes());
        f32::from_le_bytes(found.try_into().expect("four bytes"))
    };
    // TF32 has 11 bits, of each operand.
    let [half, whole] = [2f32.powi(-11), 2f32.powi(-10)];
    assert_eq!(f32(Compute::F32, &[1.0 + half]), 1.0 + half);
    assert_eq!(f32(Compute::Tf32, &[1.0 + half]), 1.0);
    assert_eq!(f32(Compute::Tf32, &[1.0 + whole + half]), 1.0 + 2.0 * whole);
    assert_eq!(f32(Compute::Tf32, &[1.0, half]), 1.0 + half);
}

/// A change of a call that is right, and a part of why it is refused.
type Wrong = (fn(&mut Product, &mut Memory), &'static str);

const WRONG: &[Wrong] = &[
    (|call, _| call.scale = Element::F64, "no product of F32 and F32 with F32 becomes F32 in F32 with scales of F64"),
    (|call, _| call.compute = Compute::F64, "in F64"),
    (|call, _| call.b.element = Element::BF16, "F32 and BF16"),
    (|call, _| call.c.element = Element::F64, "with F64 becomes F32"),
    (|call, _| [call.c.element, call.d.element] = [Element::BF16; 2], "becomes BF16"),
    (|call, _| call.bias = Some(Element::F16), "the bias is Some(F16)"),
    (|call, _| call.a.columns = 0, "`A` is empty"),
    (|call, _| call.d.batch = 1 << 31, "no 32-bit integer"),
    (|call, _| call.a.leading = 5, "the leading dimension of `A` is 5, less than its 6 rows"),
    (|call, _| call.b.leading = 4, "the leading dimension of `B`"),
    (|call, _| call.c.leading = 0, "the leading dimension of `C`"),
    (|call, _| call.b.stride = -1, "the batch of `B` goes backwards"),
    (|call, _| call.transposed[0] = true, "5 x 6 by 5 x 4 is no 6 x 4"),
    (|call, _| call.d.columns = 3, "is no 6 x 3"),
    (|call, _| call.c.columns = 3, "`C` has not the rows and columns of `D`"),
    (|call, _| call.b.batch = 1, "the batches differ"),
    (|_, memory| memory.a.bytes.truncate(239), "`A` reaches over 240 bytes, and has 239"),
    (|_, memory| memory.b.bytes.truncate(159), "`B` reaches"),
    (|_, memory| memory.d.bytes.truncate(191), "reaches over 192 bytes, and has 191"),
    (|call, _| call.a.stride += 1, "`A` reaches over 244 bytes"),
    (|call, _| call.d.leading += 1, "`D` reaches"),
    (|_, memory| memory.c = Some(Place { address: 6 << 20, bytes: vec![] }), "`C` reaches"),
    (|call, memory| (call.alignment[1], memory.b.address) = (1, 2), "`B` begins at 0x2, within an element"),
    (|_, memory| memory.a.address += 8, "`A` begins at 0x100008, which is no multiple of 16 bytes"),
    (|_, memory| memory.d.address += 4, "no multiple of 16 bytes"),
    (|call, _| call.alignment[0] = 12, "no multiple of 12 bytes"),
    (|call, _| call.c.stride += 8, "`C` reaches"),
    (|call, _| call.c.stride -= 8, "`C` is `D` with another layout"),
    (|call, _| [call.c.stride, call.d.stride] = [23; 2], "results of `D` share elements: matrix 1, column 0"),
    (|_, memory| memory.bias = None, "the epilogue's vector is null"),
    (|call, _| call.bias_stride = -6, "the batch of the bias goes backwards"),
    (|_, memory| memory.bias.as_mut().expect("a vector").bytes.truncate(20), "`bias` reaches over 24 bytes, and has 20"),
    (|call, _| call.bias_stride = 1, "`bias` reaches over 28 bytes"),
    (|_, memory| memory.bias.as_mut().expect("a vector").address += 2, "`bias` begins at 0x400002, within"),
    (|call, _| (call.epilogue, call.transposed[0]) = (Epilogue::BiasGradientA, true), "5 x 6"),
    (
        |call, _| (call.epilogue, call.transposed[0], call.a) = (Epilogue::BiasGradientA, true, dense(Element::F32, 5, 6, 2)),
        "a bias gradient of an `A` that is transposed",
    ),
    (|call, _| call.epilogue = Epilogue::BiasGradientB, "a bias gradient of a `B` that is not transposed"),
    (|call, _| (call.epilogue, call.alpha) = (Epilogue::BiasGradientA, 2.0), "of a scaled product"),
    (|call, _| call.epilogue = Epilogue::BiasGradientA, "bias gradients of a batch share elements"),
    (|_, memory| memory.d.address = memory.a.address + 224, "`D` is written and lies in the memory of `A`"),
    (|_, memory| memory.d.address = memory.b.address, "`D` is written and lies in the memory of `B`"),
    (|_, memory| memory.bias.as_mut().expect("a vector").address = 3 << 20, "`D` is written and lies in the memory of `bias`"),
    (|_, memory| memory.c = Some(Place { address: (3 << 20) + 16, ..memory.d.clone() }), "in the memory of `C`"),
    (|_, memory| memory.workspace.0 = (3 << 20) - 256, "in the memory of `workspace`"),
    (|call, _| call.reductions = 3, "reduction schemes 0x3 are allowed"),
    (|_, memory| memory.workspace.1 = 1023, "the workspace has 1023 bytes of the 1024 that may be used"),
    (|_, memory| memory.workspace.0 += 16, "the workspace begins at 0x500010, which is no multiple of 256 bytes"),
];

#[test]
fn what_the_manual_refuses_is_refused() {
    let mut call = product([6, 4, 5], 2);
    call.epilogue = Epilogue::Bias;
    let start = memory(&call);
    run(&call, &mut start.clone()).expect("nothing is wrong");
    for (number, (change, why)) in WRONG.iter().enumerate() {
        let (mut call, mut memory) = (call.clone(), start.clone());
        change(&mut call, &mut memory);
        let before = memory.clone();
        let refused = run(&call, &mut memory).expect_err(why);
        assert!(refused.contains(why), "{number}: {refused}, not {why}");
        assert_eq!(memory, before, "{why}: something was written");
    }
    // A gradient of its own for each matrix, in memory that is not another operand's.
    let mut call = call.clone();
    (call.epilogue, call.bias_stride) = (Epilogue::BiasGradientA, 6);
    let mut memory = Memory { bias: Some(Place { address: 4 << 20, bytes: vec![0; 48] }), ..start };
    run(&call, &mut memory.clone()).expect("nothing is wrong");
    memory.bias.as_mut().expect("a vector").address = memory.a.address;
    let refused = run(&call, &mut memory).expect_err("a gradient over an operand");
    assert_eq!(refused, "`bias` is written and lies in the memory of `A`");
}
