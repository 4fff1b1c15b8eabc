//! Kernels of everyday sizes, of every form: those of a small GPT, of GPT-2 and of ResNet-18.

use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::position::*;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Binary, Instr, ScalarProgram, Unary};

/// Each with what it is.
pub fn kernels() -> Vec<(String, Kernel)> {
    let (rows, wide) = (768u64, 512u64);
    let float = |strides: &[i64]| MapInput { dtype: DType::F32, strides: strides.to_vec() };
    let map = |shape: &[u64], inputs: Vec<MapInput>, code: Vec<Instr>| {
        let count = inputs.len() as u16;
        let program = ScalarProgram { inputs: count, outputs: vec![count + code.len() as u16 - 1], code };
        Map { compute: DType::F32, shape: shape.to_vec(), inputs, program, outputs: vec![DType::F32], origins: vec![] }
    };
    let dense = |shape: &[u64]| float(&[shape[1] as i64, 1]);
    let add = vec![Instr::Binary(Binary::Add, 0, 1)];
    let sum = |shape: [u64; 2], reduced: [bool; 2]| {
        Kernel::Reduce(Reduce {
            map: Map { program: ScalarProgram::identity(), ..map(&shape, vec![dense(&shape)], vec![Instr::Const(0.0)]) },
            kind: ReduceKind::Sum,
            reduced: reduced.to_vec(),
            accumulate: DType::F32,
        })
    };
    let rowwise = |program| Kernel::Rowwise(Rowwise { dtype: DType::F32, rows, width: 128, program });
    let attention = Attention {
        dtype: DType::F32,
        batch: 12,
        heads: 4,
        kv_heads: 4,
        q_len: 64,
        kv_len: 64,
        width: 32,
        v_width: 32,
        scale: 0.18,
        mask: AttentionMask::Causal,
        q: [64 * 128, 32, 128],
        k: [64 * 128, 32, 128],
        v: [64 * 128, 32, 128],
        o: [64 * 128, 32, 128],
    };
    let long = Attention {
        batch: 1,
        heads: 8,
        kv_heads: 8,
        q_len: 1024,
        kv_len: 1024,
        width: 64,
        v_width: 64,
        q: [0, 64, 512],
        k: [0, 64, 512],
        v: [0, 64, 512],
        o: [0, 64, 512],
        ..attention.clone()
    };
    let gather = Gather {
        dtype: DType::F32,
        batch: 1,
        outer: 1,
        rows: 65,
        total_rows: 65,
        inner: 128,
        count: rows,
        origin: Origin::whole(65),
    };
    let images = [16u64, 64, 1024];
    let (whole, channel) = (float(&[64 * 1024, 1024, 1]), float(&[0, 1, 0]));
    let variance = Map {
        outputs: vec![DType::F32],
        ..map(
            &images,
            vec![whole.clone(), channel.clone()],
            vec![Instr::Binary(Binary::Sub, 0, 1), Instr::Binary(Binary::Mul, 2, 2)],
        )
    };
    let normalise = map(
        &images,
        vec![whole.clone(), channel.clone(), channel.clone(), channel],
        vec![Instr::Binary(Binary::Sub, 0, 1), Instr::Binary(Binary::Mul, 4, 2), Instr::Binary(Binary::Add, 5, 3)],
    );
    let mean = Map { program: ScalarProgram::identity(), ..map(&images, vec![whole], vec![Instr::Const(0.0)]) };
    let over_channels = |map: Map| {
        let (kind, reduced) = (ReduceKind::Sum, vec![true, false, true]);
        Kernel::Reduce(Reduce { map, kind, reduced, accumulate: DType::F32 })
    };
    let mask =
        Random { shape: vec![1 << 20], strides: vec![1], origins: vec![Origin::whole(1 << 20)], threshold: 1 << 29, stream: 0 };
    let named = vec![
        ("softmax in a bundle 512x4096", Kernel::Bundle(softmax(512, 4096))),
        ("batch norm mean 16x64x1024", over_channels(mean)),
        ("batch norm variance 16x64x1024", over_channels(variance)),
        ("batch norm map 16x64x1024", Kernel::Map(normalise)),
        ("dropout mask 1 Mi", Kernel::Random(mask)),
        ("gemm nn 1024^3", gemm(1024, 1024, 1024, false, false)),
        ("gemm nt 1024^3", gemm(1024, 1024, 1024, false, true)),
        ("gemm tn 1024^3", gemm(1024, 1024, 1024, true, false)),
        ("gemm nn 256x3072x768", gemm(256, 3072, 768, false, false)),
        ("gemm nt 256x768x3072", gemm(256, 768, 3072, false, true)),
        ("gemm nt 256x50257x768", gemm(256, 50257, 768, false, true)),
        ("gemm nn 256x768x50257", gemm(256, 768, 50257, false, false)),
        ("gemm tn 50257x768x256", gemm(50257, 768, 256, true, false)),
        ("gemm tn 768x3072x256", gemm(768, 3072, 256, true, false)),
        ("gemm nt 256x3072x768", gemm(256, 3072, 768, false, true)),
        ("gemm nt 512x1408x512", gemm(512, 1408, 512, false, true)),
        ("gemm tn 1408x512x512", gemm(1408, 512, 512, true, false)),
        ("gemm nn 768x512x128", gemm(rows, wide, 128, false, false)),
        ("gemm nn 768x128x512", gemm(rows, 128, wide, false, false)),
        ("gemm nt 768x128x512", gemm(rows, 128, wide, false, true)),
        ("gemm tn 128x512x768", gemm(128, wide, rows, true, false)),
        ("gemm nn 768x384x128", gemm(rows, 384, 128, false, false)),
        ("gemm nt 48 of 64x64x32", batched(48, 64, 64, 32, true)),
        ("gemm nn 48 of 64x32x64", batched(48, 64, 32, 64, false)),
        ("map gelu tanh 768x512", Kernel::Map(map(&[rows, wide], vec![dense(&[rows, wide])], gelu()))),
        ("map gelu grad 768x512", Kernel::Map(map(&[rows, wide], vec![dense(&[rows, wide]), dense(&[rows, wide])], gelu_grad()))),
        ("map add 768x128", Kernel::Map(map(&[rows, 128], vec![dense(&[rows, 128]), dense(&[rows, 128])], add.clone()))),
        ("map add 4M", Kernel::Map(map(&[4 << 20], vec![float(&[1]), float(&[1])], add.clone()))),
        ("map add bias 768x512", Kernel::Map(map(&[rows, wide], vec![dense(&[rows, wide]), float(&[0, 1])], add.clone()))),
        (
            "map add transposed 768x512",
            Kernel::Map(map(&[rows, wide], vec![dense(&[rows, wide]), float(&[1, 768])], add.clone())),
        ),
        ("map add 16M", Kernel::Map(map(&[16 << 20], vec![float(&[1]), float(&[1])], add.clone()))),
        ("map add of 128", Kernel::Map(map(&[128], vec![float(&[1]), float(&[1])], add.clone()))),
        ("map add of 1", Kernel::Map(map(&[1], vec![float(&[1]), float(&[1])], add))),
        ("adam 800k", Kernel::Map(adam(800_000))),
        ("adam 16M", Kernel::Map(adam(16 << 20))),
        ("reduce columns 768x512", sum([rows, wide], [true, false])),
        ("reduce columns 768x128", sum([rows, 128], [true, false])),
        ("reduce rows 768x512", sum([rows, wide], [false, true])),
        ("reduce rows 768x128", sum([rows, 128], [false, true])),
        ("reduce all 768x512", sum([rows, wide], [true, true])),
        ("reduce all 4096x4096", sum([4096, 4096], [true, true])),
        ("reduce rows 4096x4096", sum([4096, 4096], [false, true])),
        ("reduce columns 4096x4096", sum([4096, 4096], [true, false])),
        ("layer norm 768x128", rowwise(RowProgram::LayerNorm { eps: 1e-5 })),
        ("layer norm grad 768x128", rowwise(RowProgram::LayerNormGrad)),
        ("softmax 768x128", rowwise(RowProgram::Softmax)),
        ("attention 12x4x64x32", Kernel::Attention(attention.clone())),
        ("attention grad 12x4x64x32", Kernel::AttentionGrad(AttentionGrad(attention))),
        ("attention 8x1024x64", Kernel::Attention(long.clone())),
        ("attention grad 8x1024x64", Kernel::AttentionGrad(AttentionGrad(long))),
        ("gather 768x128", Kernel::Gather(gather.clone())),
        ("scatter add 768x128", Kernel::ScatterAdd(ScatterAdd(gather))),
        ("transpose 1024x1024", transpose(1024)),
    ];
    let named = named.into_iter().map(|(name, kernel)| (name.to_string(), kernel));
    named.chain(convolutions()).collect()
}

/// The convolutions of a resnet18 on 16 images of 64 x 64, others of depthwise networks, and a
/// pool.
fn convolutions() -> Vec<(String, Kernel)> {
    let mut all = vec![];
    let square = |input: u64, kernel: u64, stride: u64| {
        let pad = kernel / 2;
        let output = (input + 2 * pad - kernel) / stride + 1;
        vec![WindowDim { input, output, kernel, stride, dilation: 1, pad: pad as i64 }; 2]
    };
    // Name, groups, channels of a group, window.
    let cases = [
        ("conv 3>64 7x7/2 64", 1, [3, 64], square(64, 7, 2)),
        ("conv 64>64 3x3 16", 1, [64, 64], square(16, 3, 1)),
        ("conv 64>128 3x3/2 16", 1, [64, 128], square(16, 3, 2)),
        ("conv 64>128 1x1/2 16", 1, [64, 128], square(16, 1, 2)),
        ("conv 128>128 3x3 8", 1, [128, 128], square(8, 3, 1)),
        ("conv 256>256 3x3 4", 1, [256, 256], square(4, 3, 1)),
        ("conv 512>512 3x3 2", 1, [512, 512], square(2, 3, 1)),
        ("conv 128>512 1x1 28", 1, [128, 512], square(28, 1, 1)),
        ("conv depthwise 960 3x3 2", 960, [1, 1], square(2, 3, 1)),
        ("conv depthwise 384 3x3 4", 384, [1, 1], square(4, 3, 1)),
        ("conv depthwise 192 3x3 8", 192, [1, 1], square(8, 3, 1)),
        ("conv depthwise 96 3x3 28", 96, [1, 1], square(28, 3, 1)),
        ("conv depthwise 96 3x3/2 28", 96, [1, 1], square(28, 3, 2)),
        ("conv depthwise 96 7x7 28", 96, [1, 1], square(28, 7, 1)),
        ("conv grouped 32x4 3x3 14", 32, [4, 4], square(14, 3, 1)),
    ];
    for (name, groups, [inputs, outputs], window) in cases {
        for (what, result) in [("", ConvResult::Output), (" dx", ConvResult::Input), (" dw", ConvResult::Weight)] {
            let conv = Conv { dtype: DType::F32, result, batch: 16, groups, inputs, outputs, window: window.clone() };
            all.push((format!("{name}{what}"), Kernel::Conv(conv)));
        }
    }
    let pool = MaxPool { dtype: DType::F32, planes: 16 * 64, window: square(32, 3, 2) };
    all.push(("max pool 1024 3x3/2 32".to_string(), Kernel::MaxPool(pool.clone())));
    all.push(("max pool grad 1024 3x3/2 32".to_string(), Kernel::MaxPoolGrad(MaxPoolGrad(pool))));
    all
}

fn gemm(m: u64, n: u64, k: u64, a_transposed: bool, b_transposed: bool) -> Kernel {
    Kernel::Contract(product(m, n, k, a_transposed, b_transposed))
}

/// A product of contiguous matrices.
pub fn product(m: u64, n: u64, k: u64, a_transposed: bool, b_transposed: bool) -> Contract {
    let dim = |size, a: u64, b: u64, c: u64| ContractDim { size, a: a as i64, b: b as i64, c: c as i64 };
    let (am, ak) = if a_transposed { (1, m) } else { (k, 1) };
    let (bk, bn) = if b_transposed { (1, k) } else { (n, 1) };
    Contract {
        dtype: DType::F32,
        result: DType::F32,
        batch: vec![],
        m: vec![dim(m, am, 0, n)],
        n: vec![dim(n, 0, bn, 1)],
        k: vec![dim(k, ak, bk, 0)],
    }
}

/// `batch` products of contiguous matrices.
fn batched(batch: u64, m: u64, n: u64, k: u64, b_transposed: bool) -> Kernel {
    let outer = ContractDim { size: batch, a: (m * k) as i64, b: (n * k) as i64, c: (m * n) as i64 };
    Kernel::Contract(Contract { batch: vec![outer], ..product(m, n, k, false, b_transposed) })
}

fn gelu() -> Vec<Instr> {
    use Binary::{Add, Mul};
    vec![
        Instr::Binary(Mul, 0, 0),
        Instr::Binary(Mul, 1, 0),
        Instr::Const(0.044715),
        Instr::Binary(Mul, 2, 3),
        Instr::Binary(Add, 0, 4),
        Instr::Const(0.797_884_560_8),
        Instr::Binary(Mul, 5, 6),
        Instr::Unary(Unary::Tanh, 7),
        Instr::Const(1.0),
        Instr::Binary(Add, 8, 9),
        Instr::Binary(Mul, 10, 0),
        Instr::Const(0.5),
        Instr::Binary(Mul, 11, 12),
    ]
}

/// `dy * (0.5 (1 + t) + 0.5 x (1 - t^2) u')`, `t = tanh(u)`.
fn gelu_grad() -> Vec<Instr> {
    use Binary::{Add, Mul, Sub};
    vec![
        Instr::Binary(Mul, 0, 0),
        Instr::Const(0.035677),
        Instr::Binary(Mul, 2, 3),
        Instr::Const(0.797_884_560_8),
        Instr::Binary(Add, 4, 5),
        Instr::Binary(Mul, 6, 0),
        Instr::Unary(Unary::Tanh, 7),
        Instr::Binary(Mul, 8, 8),
        Instr::Const(1.0),
        Instr::Binary(Sub, 10, 9),
        Instr::Const(3.0),
        Instr::Binary(Mul, 4, 12),
        Instr::Binary(Add, 13, 5),
        Instr::Binary(Mul, 11, 14),
        Instr::Binary(Mul, 15, 0),
        Instr::Binary(Add, 16, 8),
        Instr::Binary(Add, 17, 10),
        Instr::Const(0.5),
        Instr::Binary(Mul, 18, 19),
        Instr::Binary(Mul, 20, 1),
    ]
}

fn adam(n: u64) -> Map {
    use Binary::{Add, Div, Mul, Sub};
    let float = |stride| MapInput { dtype: DType::F32, strides: vec![stride] };
    // Inputs: p, g, m, v, lr.
    let code = vec![
        Instr::Const(0.9),
        Instr::Binary(Mul, 2, 5),
        Instr::Const(0.1),
        Instr::Binary(Mul, 1, 7),
        Instr::Binary(Add, 6, 8),
        Instr::Const(0.95),
        Instr::Binary(Mul, 3, 10),
        Instr::Binary(Mul, 1, 1),
        Instr::Const(0.05),
        Instr::Binary(Mul, 12, 13),
        Instr::Binary(Add, 11, 14),
        Instr::Unary(Unary::Sqrt, 15),
        Instr::Const(1e-8),
        Instr::Binary(Add, 16, 17),
        Instr::Binary(Div, 9, 18),
        Instr::Binary(Mul, 19, 4),
        Instr::Binary(Sub, 0, 20),
    ];
    Map {
        compute: DType::F32,
        shape: vec![n],
        inputs: vec![float(1), float(1), float(1), float(1), float(0)],
        program: ScalarProgram { inputs: 5, code, outputs: vec![21, 9, 15] },
        outputs: vec![DType::F32; 3],
        origins: vec![],
    }
}

fn transpose(n: u64) -> Kernel {
    Kernel::Move(Move {
        dtype: DType::F32,
        shape: vec![n, n],
        src_offset: Offset::default(),
        src_strides: vec![1, n as i64],
        dst_offset: Offset::default(),
        dst_strides: vec![n as i64, 1],
    })
}

/// The softmax of `[rows, width]` in f32 as a bundle: the largest number of each row, the sum of
/// exponentials beside it, and the shares.
pub fn softmax(rows: u64, width: u64) -> Bundle {
    let (all, row) = (vec![width as i64, 1], vec![1, 0]);
    let map = |inputs: &[&Vec<i64>], code: Vec<Instr>| Map {
        compute: DType::F32,
        shape: vec![rows, width],
        inputs: inputs.iter().map(|strides| MapInput { dtype: DType::F32, strides: (*strides).clone() }).collect(),
        program: ScalarProgram { inputs: inputs.len() as u16, outputs: vec![(inputs.len() + code.len() - 1) as u16], code },
        outputs: vec![DType::F32],
        origins: vec![],
    };
    let reduce = |kind, map| MemberKernel::Reduce(Reduce { map, kind, reduced: vec![false, true], accumulate: DType::F32 });
    let power = vec![Instr::Binary(Binary::Sub, 0, 1), Instr::Unary(Unary::Exp, 2)];
    let share = vec![Instr::Binary(Binary::Sub, 0, 1), Instr::Unary(Unary::Exp, 3), Instr::Binary(Binary::Div, 4, 2)];
    let (x, top, total) = (Source::Read(0), Source::Write(0), Source::Write(1));
    let members = vec![
        Member { kernel: reduce(ReduceKind::Max, map(&[&all], vec![])), reads: vec![x] },
        Member { kernel: reduce(ReduceKind::Sum, map(&[&all, &row], power)), reads: vec![x, top] },
        Member { kernel: MemberKernel::Map(map(&[&all, &row, &row], share)), reads: vec![x, top, total] },
    ];
    Bundle { rows, members }
}
