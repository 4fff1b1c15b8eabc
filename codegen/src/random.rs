//! Random: a thread draws one element's word; four neighbours draw the same block of words.

use crate::Cuda;
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated};
use crate::space;
use crate::text::{number, sum};
use shardc_ir::dtype::DType;
use shardc_ir::kernel::{Form, Implements, Random};
use shardc_ir::philox::{MULTIPLIERS, ROUNDS, WEYL};
use shardc_ir::reason::Reason;

impl Implements<Random> for Cuda {
    fn ready(&self, random: &Random, _in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let total = random.signature(&self.mesh)?.writes[0].elements;
        let mut function = Function::new("random");
        function.reads("seed", 0, DType::I64, 1, Accesses::over(&[]));
        function.reads("step", 1, DType::F64, 1, Accesses::over(&[]));
        function.writes("y", 0, DType::Bool, total, true, Accesses::over(&[(total, 1)]));
        let mut places = vec![];
        for (d, (origin, stride)) in random.origins.iter().zip(&random.strides).enumerate() {
            let offset = number(&origin.offset, &mut function.numbers);
            let digits =
                origin.digits.iter().map(|digit| format!("c{d} / {} % {} * {}", digit.divisor, digit.size, digit.stride));
            places.push(format!("((u64){offset} + {}) * {stride}", sum(digits.collect())));
        }
        function.threads_over(total);
        function.begin(THREADS);
        let dims: Vec<usize> = (0..random.shape.len()).collect();
        let text = &mut function.text;
        text.line(format!("u64 i = (u64)blockIdx.x * {THREADS} + threadIdx.x;"));
        text.line(format!("if (i >= {total}) return;"));
        text.lines(space::indices(&random.shape, &dims, "i", "u64"));
        text.lines([
            format!("u64 place = {};", sum(places)),
            "u64 key = (u64)seed[0];".to_owned(),
            "u32 w0 = (u32)(place / 4), w1 = (u32)(place / 4 >> 32);".to_owned(),
            format!("u32 w2 = (u32)to_i64(step[0]), w3 = {}u;", random.stream),
            "u32 k0 = (u32)key, k1 = (u32)(key >> 32);".to_owned(),
            "#pragma unroll".to_owned(),
            format!("for (int round = 0; round < {ROUNDS}; round++) {{"),
            format!("u32 a = high_product({:#x}u, w0), b = high_product({:#x}u, w2);", MULTIPLIERS[0], MULTIPLIERS[1]),
            format!("u32 low_a = {:#x}u * w0, low_b = {:#x}u * w2;", MULTIPLIERS[0], MULTIPLIERS[1]),
            "w0 = b ^ w1 ^ k0;".to_owned(),
            "w1 = low_b;".to_owned(),
            "w2 = a ^ w3 ^ k1;".to_owned(),
            "w3 = low_a;".to_owned(),
            format!("k0 += {:#x}u;", WEYL[0]),
            format!("k1 += {:#x}u;", WEYL[1]),
            "}".to_owned(),
            "u32 which = (u32)(place % 4);".to_owned(),
            "u32 word = which == 0 ? w0 : which == 1 ? w1 : which == 2 ? w2 : w3;".to_owned(),
            format!("y[i] = bool8{{(u8)(word >= {}u)}};", random.threshold),
            "}".to_owned(),
        ]);
        function.finish()
    }
}
