//! Kernels that no compiler would write are refused.

use shardc_executor::cpu::prepare;
use shardc_ir::dtype::DType;
use shardc_ir::kernel::*;
use shardc_ir::mesh::AxisId;
use shardc_ir::position::*;
use shardc_ir::reduce_kind::ReduceKind;
use shardc_ir::scalar::{Instr, ScalarProgram, Unary};
use shardc_testkit::reference::draw::mesh;

#[test]
fn forged_kernels_are_refused() {
    let map = Map {
        compute: DType::F32,
        shape: vec![4],
        inputs: vec![MapInput { dtype: DType::F32, strides: vec![1] }],
        program: ScalarProgram { inputs: 1, code: vec![Instr::Unary(Unary::Neg, 9)], outputs: vec![1] },
        outputs: vec![DType::F32],
        origins: vec![],
    };
    assert!(prepare(&Kernel::Map(map.clone()), &[]).is_err());
    let forward =
        Map { program: ScalarProgram { inputs: 1, code: vec![Instr::Unary(Unary::Neg, 1)], outputs: vec![1] }, ..map.clone() };
    assert!(prepare(&Kernel::Map(forward), &[]).is_err());
    let result = Map { program: ScalarProgram { inputs: 1, code: vec![], outputs: vec![7] }, ..map.clone() };
    assert!(prepare(&Kernel::Map(result), &[]).is_err());
    let index = Map { program: ScalarProgram { inputs: 1, code: vec![Instr::Index(3)], outputs: vec![1] }, ..map.clone() };
    assert!(prepare(&Kernel::Map(index), &[]).is_err());
    let bad = |kernel: &Kernel| kernel.signature(&mesh()).is_err();
    assert!(bad(&Kernel::Map(Map { inputs: vec![MapInput { dtype: DType::F32, strides: vec![-1] }], ..map.clone() })));
    assert!(bad(&Kernel::Map(Map { shape: vec![u64::MAX, 3], inputs: vec![], ..map.clone() })));
    let origin = Origin { offset: Offset { base: 0, terms: vec![(AxisId(9), 1)] }, ..Origin::whole(4) };
    assert!(bad(&Kernel::Map(Map { origins: vec![(0, origin)], ..map })));
    let copy = Move {
        dtype: DType::F32,
        shape: vec![4, 4],
        src_offset: Offset::default(),
        src_strides: vec![4, 1],
        dst_offset: Offset::default(),
        dst_strides: vec![2, 1],
    };
    assert!(bad(&Kernel::Move(copy.clone())));
    assert!(bad(&Kernel::Move(Move { dst_strides: vec![4, -1], ..copy })));
    let dim = |size, c| ContractDim { size, a: 1, b: 1, c };
    assert!(bad(&Kernel::Contract(Contract {
        dtype: DType::F32,
        result: DType::F32,
        batch: vec![],
        m: vec![dim(4, 1)],
        n: vec![dim(4, 1)],
        k: vec![]
    })));
    assert!(bad(&Kernel::Contract(Contract {
        dtype: DType::I64,
        result: DType::I64,
        batch: vec![],
        m: vec![],
        n: vec![],
        k: vec![]
    })));
    let dim = WindowDim { input: 4, output: 4, kernel: 3, stride: 1, dilation: 1, pad: 1 };
    let conv = |dim: WindowDim, batch| {
        let (dtype, result) = (DType::F32, ConvResult::Output);
        Kernel::Conv(Conv { dtype, result, batch, groups: 1, inputs: 2, outputs: 2, window: vec![dim; 2] })
    };
    assert!(!bad(&conv(dim, 1)));
    assert!(bad(&conv(dim, u64::MAX)));
    for forged in [
        WindowDim { stride: 0, ..dim },
        WindowDim { kernel: 0, ..dim },
        WindowDim { dilation: u64::MAX, ..dim },
        WindowDim { pad: i64::MIN, ..dim },
        WindowDim { output: 1 << 30, ..dim },
    ] {
        assert!(bad(&conv(forged, 1)));
        assert!(bad(&Kernel::MaxPool(MaxPool { dtype: DType::F32, planes: 1, window: vec![forged; 2] })));
    }
    assert!(bad(&Kernel::MaxPool(MaxPool { dtype: DType::I64, planes: 1, window: vec![dim] })));
    assert!(bad(&Kernel::MaxPool(MaxPool { dtype: DType::F32, planes: 1, window: vec![dim; 4] })));
    let collective = Collective {
        kind: CollectiveKind::AllGather,
        op: ReduceKind::Sum,
        axes: vec![AxisId(2)],
        dtype: DType::F32,
        counts: vec![4],
    };
    assert!(bad(&Kernel::Collective(collective.clone())));
    assert!(bad(&Kernel::Collective(Collective { axes: vec![AxisId(0), AxisId(0)], ..collective })));
}
