//! Updates of many tensors in one launch.

use shardc_codegen::{Cuda, Generated, Launch, generate};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Bundle, Kernel, Map, MapInput, Member, MemberKernel, Source};
use shardc_ir::limits::MAX_MEMBERS;
use shardc_ir::mesh::Mesh;
use shardc_ir::scalar::{Binary, Instr, ScalarProgram};

/// Bytes of parameters that every driver takes.
const PARAMETERS: usize = 4096;

/// `p - g` in place over tensors of those sizes.
fn updates(sizes: &[u64]) -> Generated {
    let input = || MapInput { dtype: DType::F32, strides: vec![1] };
    let member = |(at, size): (u32, &u64)| Member {
        kernel: MemberKernel::Map(Map {
            compute: DType::F32,
            shape: vec![*size],
            inputs: vec![input(), input()],
            program: ScalarProgram { inputs: 2, code: vec![Instr::Binary(Binary::Sub, 0, 1)], outputs: vec![2] },
            outputs: vec![DType::F32],
            origins: vec![],
        }),
        reads: vec![Source::Read(2 * at), Source::Read(2 * at + 1)],
    };
    let bundle = Bundle { rows: 1, members: (0..).zip(sizes).map(member).collect() };
    let in_place: Vec<Option<usize>> = (0..sizes.len()).flat_map(|at| [Some(at), None]).collect();
    let cuda = Cuda { mesh: Mesh::new([], 1), aligned: true };
    generate(&Kernel::Bundle(bundle), &cuda, &in_place).expect("a text")
}

#[test]
fn launches_are_functions_of_the_text_and_their_parameters_fit() {
    for sizes in [vec![0], vec![0, 0], vec![1], vec![1, 1, 3], vec![8; MAX_MEMBERS], (0..MAX_MEMBERS as u64).collect()] {
        let generated = updates(&sizes);
        for launch in &generated.launches {
            let head = format!(" {}(", launch.entry);
            assert!(generated.text.contains(&head), "{sizes:?}: `{}` is not in the text", launch.entry);
            assert!(8 * launch.parameters.len() <= PARAMETERS, "{sizes:?}: {} parameters", launch.parameters.len());
        }
        let written = |launch: &Launch| launch.parameters.iter().filter(|p| p.is_written).map(|p| p.bytes).sum::<u64>();
        let bytes: u64 = generated.launches.iter().map(written).sum();
        assert_eq!(bytes, 4 * sizes.iter().sum::<u64>(), "{sizes:?}");
    }
}
