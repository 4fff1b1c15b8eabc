//! Map: a thread computes a few neighbouring elements, read and written by 16 bytes where they lie
//! for it; those of narrower types by fewer, so that no operand takes two accesses.

use crate::Cuda;
use crate::body::{Body, accesses};
use crate::function::{Function, THREADS};
use crate::generated::{Accesses, Generated, Memory, Parameter};
use crate::space;
use crate::text::Text;
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::{Form, Implements, Map};
use shardc_ir::reason::Reason;

impl Implements<Map> for Cuda {
    fn ready(&self, map: &Map, in_place: &[Option<usize>]) -> Result<Generated, Reason> {
        let signature = map.signature(&self.mesh)?;
        let rank = map.shape.len();
        let place = |at: usize| in_place.get(at).copied().flatten();
        let names = (0..map.inputs.len()).map(|at| place(at).map_or(format!("a{at}"), |w| format!("y{w}"))).collect();
        let order: Vec<usize> = (0..rank).collect();
        let mut body = Body::new(map, &order, &vec![0; rank], names, &[row_major(&map.shape)]);
        if self.aligned {
            body.lanes = body.most_lanes(&map.outputs);
        }
        let total: u64 = map.shape.iter().product();
        let reads: Vec<u64> = signature.reads.iter().map(|operand| operand.elements).collect();
        let mut function = Function::new("map");
        for parameter in body.parameters(&reads, in_place) {
            let Memory::Read(at) = parameter.memory else { continue };
            let touched = body.accesses(at);
            function.takes(parameter, map.inputs[at].dtype, vec![touched]);
        }
        for (at, dtype) in map.outputs.iter().enumerate() {
            let parameter = Parameter {
                name: format!("y{at}"),
                memory: Memory::Write(at),
                bytes: total * dtype.bytes(),
                is_read: (0..map.inputs.len()).any(|read| place(read) == Some(at)),
                is_written: true,
                whole: true,
            };
            let touched = Accesses { is_write: true, ..accesses(&body.space, body.other(0), body.lanes) };
            function.takes(parameter, *dtype, vec![touched]);
        }
        function.numbers = body.numbers.clone();
        function.shared = body.shared();
        function.threads_over(total / body.lanes);
        function.begin(THREADS);
        write(&body, total / body.lanes, &mut function.text);
        function.finish()
    }
}

fn write(body: &Body<'_>, threads: u64, text: &mut Text) {
    let (kind, lanes) = (body.index_type(), body.lanes);
    body.write_once(text);
    text.line(format!("{kind} i = ({kind})blockIdx.x * {THREADS} + threadIdx.x;"));
    text.line(format!("if (i >= {threads}) return;"));
    let dims: Vec<usize> = (0..body.space.sizes.len()).collect();
    text.lines(space::lane_indices(&body.space.sizes, &dims, "i", kind, lanes));
    body.write_elements(text, 0, &space::position(lanes));
    text.line("}");
}
