//! The CPU backend: the definition of every kernel form, over typed slices of an arena.
//!
//! A kernel is checked and made ready once ([`Prepared::new`]), then launched any number of times. Results depend on shapes only,
//! never on the number of threads.

mod attention;
mod attention_grad;
mod block;
mod chain;
mod contract;
mod conv;
mod conv_columns;
mod conv_direct;
mod copy;
pub mod element;
mod fill;
mod fused;
mod gather;
mod lanes;
mod map;
mod math;
mod number;
mod placement;
mod pool;
mod random;
mod reduce;
mod rowwise;
mod scratch;
pub mod signature;
mod simd;
mod softmax;
mod space;
pub mod threads;
mod tiles;
mod window;

use element::{Slice, SliceMut};
pub(crate) use reduce::combine;
use shardc_ir::kernel::{Attention, Collective, CollectiveKind, Gather, Kernel, Random, Rowwise};
use shardc_ir::mesh::Mesh;
use signature::{Signature, product};
use threads::Threads;

/// A kernel made ready for one arrangement of its operands in memory.
#[derive(Debug)]
pub struct Prepared {
    form: Form,
}

#[derive(Debug)]
enum Form {
    Map(fused::Fused),
    Reduce(reduce::Prepared),
    Rowwise(Rowwise),
    Contract(contract::Prepared),
    Attention(Attention),
    AttentionGrad(Attention),
    Conv(conv::Prepared),
    MaxPool(pool::Prepared),
    MaxPoolGrad(pool::Prepared),
    Move(copy::Prepared),
    Gather(Gather),
    ScatterAdd(Gather),
    Fill { count: usize, value: f64 },
    Random(Random),
}

/// What `kernel` demands of its operands.
///
/// # Errors
/// If the kernel is not well formed: sizes that overflow, strides that reach before a view, results that share elements.
pub fn signature(kernel: &Kernel, mesh: &Mesh) -> Result<Signature, String> {
    match kernel {
        Kernel::Map(map) => map::signature(map, mesh),
        Kernel::Reduce(reduce) => reduce::signature(reduce, mesh),
        Kernel::Rowwise(rowwise) => rowwise::signature(rowwise),
        Kernel::Contract(contract) => contract::signature(contract),
        Kernel::Attention(attention) => attention::signature(attention),
        Kernel::AttentionGrad(attention) => attention_grad::signature(attention),
        Kernel::Conv(conv) => conv::signature(conv),
        Kernel::MaxPool(pool) => pool::signature(pool),
        Kernel::MaxPoolGrad(pool) => pool::gradient_signature(pool),
        Kernel::Move(copy) => copy::signature(copy, mesh),
        Kernel::Gather(gather) => gather::gather_signature(gather, mesh),
        Kernel::ScatterAdd(gather) => gather::scatter_signature(gather, mesh),
        Kernel::Fill { dtype, count, .. } => Ok(Signature::default().writes(*dtype, product(&[*count])?)),
        Kernel::Random(random) => random::signature(random, mesh),
        Kernel::Collective(collective) => collective_signature(collective, mesh),
    }
}

/// Whether read operand `read` of `kernel` may be the same memory as its written operand `write`.
pub fn may_be_in_place(kernel: &Kernel, read: usize, write: usize) -> bool {
    match kernel {
        Kernel::Map(map) => map::may_be_in_place(map, read, write),
        Kernel::Collective(collective) => collective.kind == CollectiveKind::AllReduce,
        _ => false,
    }
}

impl Prepared {
    /// Makes a kernel ready whose operands fit its [`signature()`]. `in_place` says for each read which write is the same memory.
    ///
    /// # Errors
    /// If the kernel is not well formed, or a collective, which a communicator runs.
    pub fn new(kernel: &Kernel, in_place: &[Option<usize>]) -> Result<Prepared, String> {
        let form = match kernel {
            Kernel::Map(map) => Form::Map(map::prepare(map, in_place)?),
            Kernel::Reduce(reduce) => Form::Reduce(reduce::prepare(reduce)?),
            Kernel::Rowwise(rowwise) => Form::Rowwise(rowwise.clone()),
            Kernel::Contract(contract) => Form::Contract(contract::prepare(contract)),
            Kernel::Conv(conv) => Form::Conv(conv::prepare(conv)?),
            Kernel::MaxPool(pool) => Form::MaxPool(pool::prepare(pool)?),
            Kernel::MaxPoolGrad(pool) => Form::MaxPoolGrad(pool::prepare(pool)?),
            Kernel::Move(copy) => Form::Move(copy::prepare(copy)),
            Kernel::Gather(gather) => Form::Gather(gather.clone()),
            Kernel::ScatterAdd(gather) => Form::ScatterAdd(gather.clone()),
            Kernel::Fill { count, value, .. } => Form::Fill { count: *count as usize, value: *value },
            Kernel::Random(random) => Form::Random(random.clone()),
            Kernel::Attention(attention) => Form::Attention(attention.clone()),
            Kernel::AttentionGrad(attention) => Form::AttentionGrad(attention.clone()),
            Kernel::Collective(_) => return Err("a collective is no kernel of one rank".to_string()),
        };
        Ok(Prepared { form })
    }

    /// Runs the kernel at the mesh `coordinates`. A read that is in place is not looked at; any slice will do.
    ///
    /// # Errors
    /// On bad data: an index outside its table.
    ///
    /// # Panics
    /// If an operand is shorter than the [`signature()`] says.
    pub fn launch(
        &self,
        reads: &[Slice<'_>],
        mut writes: Vec<SliceMut<'_>>,
        coordinates: &[u64],
        threads: Threads,
    ) -> Result<(), String> {
        match &self.form {
            Form::Map(fused) => map::launch(fused, reads, writes, coordinates, threads)?,
            Form::Reduce(reduce) => reduce::launch(reduce, reads, writes.remove(0), coordinates, threads)?,
            Form::Rowwise(rowwise) => rowwise::launch(rowwise, reads, writes, threads),
            Form::Contract(contract) => contract::launch(contract, reads, writes.remove(0), threads),
            Form::Attention(attention) => attention::launch(attention, reads, writes, threads),
            Form::AttentionGrad(attention) => attention_grad::launch(attention, reads, writes, threads),
            Form::Conv(conv) => conv::launch(conv, reads, writes.remove(0), threads),
            Form::MaxPool(pool) => pool::launch(pool, reads, writes.remove(0), threads),
            Form::MaxPoolGrad(pool) => pool::launch_gradient(pool, reads, writes.remove(0), threads),
            Form::Move(copy) => copy::launch(copy, reads[0], writes.remove(0), coordinates, threads),
            Form::Gather(gather) => gather::gather(gather, reads, writes.remove(0), coordinates, threads)?,
            Form::ScatterAdd(gather) => gather::scatter(gather, reads, writes.remove(0), coordinates, threads)?,
            Form::Fill { count, value } => fill::launch(*value, *count, writes.remove(0)),
            Form::Random(random) => random::launch(random, reads, writes.remove(0), coordinates, threads),
        }
        Ok(())
    }
}

fn collective_signature(collective: &Collective, mesh: &Mesh) -> Result<Signature, String> {
    let axes = &collective.axes;
    let distinct = axes.iter().enumerate().all(|(i, a)| a.index() < mesh.rank_axes().len() && !axes[..i].contains(a));
    if !distinct {
        return Err("a collective over axes that are not there, or twice over one".to_string());
    }
    let all = product(&axes.iter().map(|a| mesh.size(*a)).chain([collective.count]).collect::<Vec<_>>())?;
    let (source, destination) = match collective.kind {
        CollectiveKind::AllReduce => (collective.count, collective.count),
        CollectiveKind::AllGather => (collective.count, all),
        CollectiveKind::ReduceScatter => (all, collective.count),
        CollectiveKind::AllToAll => (all, all),
    };
    Ok(Signature::default().reads(collective.dtype, source).writes(collective.dtype, destination))
}
