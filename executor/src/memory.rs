//! A rank's memory as whoever trains sees it: buffers by name, whole arrays in, parts out. Where
//! the bytes are, and how they are reached, is for the backend.

use crate::common::BytesInCommon;
use crate::load::Loaded;
use crate::shard::Layout;
use crate::tensor::Tensor;
use shardc_ir::mesh::Mesh;
use shardc_ir::plan::set::Name;
use shardc_ir::plan::{Buffer, BufferId, BufferKind, HostScalar, Program};
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Which rank of which program.
#[derive(Debug, Clone)]
pub struct Place {
    /// The program.
    pub loaded: Arc<Loaded>,
    /// The rank's coordinates; the last one is the micro-batch.
    pub coordinates: Vec<u64>,
}

/// Bytes of a rank's memory.
#[derive(Debug)]
pub enum Bytes<'a> {
    /// They are its own.
    Own(&'a [u8]),
    /// It holds them in common with other ranks, none of which writes meanwhile.
    Common(BytesInCommon),
    /// A copy of them, which is on a device.
    Copied(Vec<u8>),
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Own(bytes) => bytes,
            Bytes::Common(bytes) => bytes,
            Bytes::Copied(bytes) => bytes,
        }
    }
}

impl Bytes<'_> {
    /// A copy of them.
    pub fn into_owned(self) -> Vec<u8> {
        if let Bytes::Copied(bytes) = self { bytes } else { self.to_vec() }
    }
}

/// Memory that lies as the arena of the rank's program does.
pub trait Memory {
    /// Whose memory it is.
    fn place(&self) -> &Place;

    /// The bytes of `range`.
    ///
    /// # Errors
    /// If the range is outside the arena, or the device fails.
    fn bytes(&self, range: Range<u64>) -> Result<Bytes<'_>, Reason>;

    /// Lets `fill` write all bytes of `range`.
    ///
    /// # Errors
    /// As [`Memory::bytes`].
    fn fill(&mut self, range: Range<u64>, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), Reason>;

    /// The rank's buffer of what has that name.
    fn named(&self, name: &Name) -> Option<BufferId> {
        self.place().loaded.names.get(name).copied()
    }

    /// Keeps this rank's part of a whole array, in every slot.
    ///
    /// # Errors
    /// If the array is not of the buffer's type.
    fn write(&mut self, id: BufferId, tensor: &Tensor) -> Result<(), Reason> {
        let place = self.place().clone();
        place.check_type(id, tensor)?;
        self.write_bytes(id, &tensor.bytes)
    }

    /// As [`Memory::write`], of elements without a type.
    ///
    /// # Errors
    /// If they are too many or too few.
    fn write_bytes(&mut self, id: BufferId, global: &[u8]) -> Result<(), Reason> {
        let place = self.place().clone();
        for part in place.parts(id, global)? {
            self.fill(part.range.clone(), &mut |local| part.write(local))?;
        }
        Ok(())
    }

    /// Makes this rank's part of a buffer zero, in every slot.
    ///
    /// # Errors
    /// If there is no such buffer, or the device fails.
    fn zero(&mut self, id: BufferId) -> Result<(), Reason> {
        let ranges = self.place().ranges(id)?;
        ranges.into_iter().try_for_each(|range| self.fill(range, &mut |local| local.fill(0)))
    }

    /// This rank's part of what has that name, slot after slot; `None` if it has none, or another
    /// rank with the same program holds the same.
    ///
    /// # Errors
    /// As [`Memory::bytes`].
    fn read(&self, name: &Name) -> Result<Option<Vec<u8>>, Reason> {
        let Some(id) = self.named(name) else { return Ok(None) };
        if self.place().is_first_replica(id)? { self.part(id).map(Some) } else { Ok(None) }
    }

    /// The bytes `piece` of what [`Memory::read`] gives, of one slot.
    ///
    /// # Errors
    /// As [`Memory::bytes`].
    fn read_piece(&self, name: &Name, piece: Range<u64>) -> Result<Option<Vec<u8>>, Reason> {
        let Some(id) = self.named(name) else { return Ok(None) };
        match self.place().ranges(id)?.first() {
            Some(range) if self.place().is_first_replica(id)? => {
                Ok(Some(self.bytes(range.start + piece.start..range.start + piece.end)?.into_owned()))
            }
            _ => Ok(None),
        }
    }

    /// This rank's part of a buffer, slot after slot.
    ///
    /// # Errors
    /// As [`Memory::bytes`].
    fn part(&self, id: BufferId) -> Result<Vec<u8>, Reason> {
        let ranges = self.place().ranges(id)?;
        let mut slots = ranges.into_iter().map(|range| self.bytes(range));
        let mut part = slots.next().transpose()?.map_or(vec![], Bytes::into_owned);
        slots.try_for_each(|slot| slot.map(|slot| part.extend_from_slice(&slot)))?;
        Ok(part)
    }
}

/// A rank's part of a whole array in one slot of a buffer.
#[derive(Debug)]
pub struct Part<'a> {
    /// Where it lies in the arena.
    pub range: Range<u64>,
    layout: Layout<'a>,
    coordinates: Vec<u64>,
    global: &'a [u8],
}

impl Part<'_> {
    /// Writes it to `local`, which has as many bytes as the range.
    pub fn write(&self, local: &mut [u8]) {
        self.layout.shard(self.global, &self.coordinates, local);
    }
}

impl Place {
    /// Rank `rank` of a program, at the first micro-batch.
    pub fn new(loaded: Arc<Loaded>, rank: u64) -> Place {
        let coordinates = loaded.program().mesh.coordinates(rank);
        Place { loaded, coordinates }
    }

    /// The program.
    pub fn program(&self) -> &Program {
        self.loaded.program()
    }

    /// The rank's number.
    pub fn number(&self) -> u64 {
        self.program().mesh.rank(&self.coordinates)
    }

    /// Whether this rank is the first of those with the same program that hold the same of a
    /// buffer.
    ///
    /// # Errors
    /// If there is no such buffer.
    pub fn is_first_replica(&self, id: BufferId) -> Result<bool, Reason> {
        let found = self.program().buffer(id)?;
        let mut coordinates = self.coordinates.clone();
        for axis in self.loaded.programs.axes.iter().filter(|axis| !found.sharding.splits(**axis)) {
            coordinates[axis.index()] = 0;
        }
        Ok(layout(&self.program().mesh, found).is_first_replica(&coordinates))
    }

    /// The bytes of the arena that hold a buffer's slots.
    ///
    /// # Errors
    /// If there is no such buffer.
    pub fn ranges(&self, id: BufferId) -> Result<Vec<Range<u64>>, Reason> {
        let found = self.program().buffer(id)?;
        let local = layout(&self.program().mesh, found).local_bytes();
        let starts = (0..found.slots).map(|slot| found.offset + slot * found.slot_bytes);
        Ok(starts.map(|start| start..start + local).collect())
    }

    /// The rank's part of a whole array for each slot of a buffer.
    ///
    /// # Errors
    /// If there is no such buffer, or `global` is not as long as the array.
    pub fn parts<'a>(&'a self, id: BufferId, global: &'a [u8]) -> Result<Vec<Part<'a>>, Reason> {
        let found = self.program().buffer(id)?;
        let layout = layout(&self.program().mesh, found);
        if global.len() as u64 != layout.global_bytes() {
            return Err(reason!("`{}` has {} bytes, not {}", found.name, layout.global_bytes(), global.len()));
        }
        let part = |(slot, range)| {
            let mut coordinates = self.coordinates.clone();
            *coordinates.last_mut()? = slot;
            Some(Part { range, layout, coordinates, global })
        };
        let parts: Option<Vec<_>> = (0..).zip(self.ranges(id)?).map(part).collect();
        parts.ok_or_else(|| "a mesh without axes".into())
    }

    /// Whether an array is of a buffer's type.
    ///
    /// # Errors
    /// If not, or if there is no such buffer.
    pub fn check_type(&self, id: BufferId, tensor: &Tensor) -> Result<(), Reason> {
        let found = self.program().buffer(id)?;
        if tensor.dtype == found.dtype && tensor.shape == found.shape {
            return Ok(());
        }
        let (dtype, shape) = (tensor.dtype, &tensor.shape);
        Err(reason!("`{}` is {}{:?}, not {dtype}{shape:?}", found.name, found.dtype, found.shape))
    }

    /// The numbers that the host writes before step `number` (from 0), with their buffers.
    pub fn scalars(&self, number: u64) -> Vec<(BufferId, Tensor)> {
        let of = |(id, buffer): (u32, &Buffer)| match buffer.kind {
            BufferKind::Scalar(scalar) => Some((BufferId(id), scalar_value(self.program(), buffer, scalar, number))),
            _ => None,
        };
        (0..).zip(&self.program().buffers).filter_map(of).collect()
    }
}

fn scalar_value(program: &Program, buffer: &Buffer, scalar: HostScalar, number: u64) -> Tensor {
    let float = |value: f64| Tensor::from_f64(&buffer.shape, &[value]).cast(buffer.dtype);
    match scalar {
        HostScalar::LearningRate => float(program.learning_rate.at(number)),
        HostScalar::StepCount => float((number + 1) as f64),
        HostScalar::Seed => Tensor::from_i64(&buffer.shape, &[program.seed as i64]),
    }
}

/// How `buffer` is laid over a mesh.
pub fn layout<'a>(mesh: &'a Mesh, buffer: &'a Buffer) -> Layout<'a> {
    Layout { shape: &buffer.shape, sharding: &buffer.sharding, mesh, element: buffer.dtype.bytes() }
}
