//! Planes side by side: a line holds one element of each of 16 planes, so that vectors are full
//! however narrow a plane is.

#[cfg(target_arch = "x86_64")]
use crate::cpu::element::{Slice, SliceMut};
#[cfg(target_arch = "x86_64")]
use crate::cpu::lines::Vectors;
use crate::cpu::number::Number;

/// Planes of a line.
pub const LINE: usize = 16;

/// Turns at most [`LINE`] planes, of as many elements as there are lines; missing ones are 0.
pub fn turn<T: Number>(planes: &[T], lines: &mut [[T; LINE]]) {
    let elements = lines.len();
    #[cfg(target_arch = "x86_64")]
    if let (Slice::F32(planes), SliceMut::F32(lines)) = (T::wrap(planes), T::wrap_mut(lines.as_flattened_mut()))
        && turn_vectors(planes, elements, lines.as_chunks_mut().0)
    {
        return;
    }
    if planes.len() < LINE * elements {
        lines.fill([T::ZERO; LINE]);
    }
    for (lane, plane) in planes.chunks_exact(elements).enumerate() {
        lines.iter_mut().zip(plane).for_each(|(line, element)| line[lane] = *element);
    }
}

/// The planes of lines.
pub fn turn_back<T: Number>(lines: &[[T; LINE]], planes: &mut [T]) {
    let elements = lines.len();
    #[cfg(target_arch = "x86_64")]
    if let (Slice::F32(lines), SliceMut::F32(planes)) = (T::wrap(lines.as_flattened()), T::wrap_mut(&mut *planes))
        && turn_vectors_back(lines.as_chunks().0, elements, planes)
    {
        return;
    }
    for (lane, plane) in planes.chunks_exact_mut(elements).enumerate() {
        plane.iter_mut().zip(lines).for_each(|(element, line)| *element = line[lane]);
    }
}

/// The same by vector instructions, if there are such and planes are worth it. Says whether it was
/// done.
#[cfg(target_arch = "x86_64")]
fn turn_vectors(planes: &[f32], elements: usize, lines: &mut [[f32; LINE]]) -> bool {
    let Some(vectors) = Vectors::detect().filter(|_| elements >= LINE) else { return false };
    let mut rows: [&[f32]; LINE] = [&[]; LINE];
    rows.iter_mut().zip(planes.chunks_exact(elements)).for_each(|(row, plane)| *row = plane);
    vectors.interleave(&rows, lines, 1);
    true
}

#[cfg(target_arch = "x86_64")]
fn turn_vectors_back(lines: &[[f32; LINE]], elements: usize, planes: &mut [f32]) -> bool {
    let Some(vectors) = Vectors::detect().filter(|_| elements >= LINE) else { return false };
    for (block, lines) in lines.chunks(LINE).enumerate() {
        for (plane, row) in planes.chunks_exact_mut(elements).zip(&vectors.columns_of(lines)) {
            let plane = &mut plane[block * LINE..];
            match plane.first_chunk_mut() {
                Some(plane) => *plane = *row,
                None => plane.iter_mut().zip(row).for_each(|(to, from)| *to = *from),
            }
        }
    }
    true
}
