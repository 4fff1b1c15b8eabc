//! What ranks tell one another of their results, as bytes.

use crate::comm::{Traffic, TrafficTable};
use crate::worker::Stepped;
use shardc_ir::kernel::CommunicationKind;
use shardc_ir::mesh::AxisId;

/// A value that goes from one process to another of the same program.
pub trait Carry: Sized {
    /// Puts it behind `to`.
    fn put(&self, to: &mut Vec<u8>);

    /// Takes it from the beginning of `from`, if it is there.
    fn take(from: &mut &[u8]) -> Option<Self>;

    /// Its bytes.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![];
        self.put(&mut bytes);
        bytes
    }

    /// The value whose bytes these are.
    fn of(mut bytes: &[u8]) -> Option<Self> {
        Self::take(&mut bytes).filter(|_| bytes.is_empty())
    }
}

impl Carry for u64 {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend(self.to_le_bytes());
    }

    fn take(from: &mut &[u8]) -> Option<u64> {
        let (number, rest) = from.split_first_chunk()?;
        *from = rest;
        Some(u64::from_le_bytes(*number))
    }
}

impl Carry for Vec<u8> {
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u64).put(to);
        to.extend(self);
    }

    fn take(from: &mut &[u8]) -> Option<Vec<u8>> {
        let length = usize::try_from(u64::take(from)?).ok()?;
        let (bytes, rest) = from.split_at_checked(length)?;
        *from = rest;
        Some(bytes.to_vec())
    }
}

impl<T: Carry> Carry for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        u64::from(self.is_some()).put(to);
        self.iter().for_each(|value| value.put(to));
    }

    fn take(from: &mut &[u8]) -> Option<Option<T>> {
        match u64::take(from)? {
            0 => Some(None),
            _ => T::take(from).map(Some),
        }
    }
}

impl<T: Carry> Carry for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u64).put(to);
        self.iter().for_each(|value| value.put(to));
    }

    fn take(from: &mut &[u8]) -> Option<Vec<T>> {
        let count = u64::take(from)?;
        (0..count).map(|_| T::take(from)).collect()
    }
}

impl<A: Carry, B: Carry> Carry for (A, B) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }

    fn take(from: &mut &[u8]) -> Option<(A, B)> {
        Some((A::take(from)?, B::take(from)?))
    }
}

/// Without its times, which mean something in one process only.
impl Carry for Stepped {
    fn put(&self, to: &mut Vec<u8>) {
        self.outputs.put(to);
        u64::from(self.given_up).put(to);
    }

    fn take(from: &mut &[u8]) -> Option<Stepped> {
        let outputs = Vec::take(from)?;
        Some(Stepped { outputs, given_up: u64::take(from)? > 0, timed: None })
    }
}

type Row = (CommunicationKind, Vec<AxisId>, u64, u64);

impl Carry for TrafficTable {
    fn put(&self, to: &mut Vec<u8>) {
        let rows: Vec<Row> = self.iter().map(|((kind, axes), t)| (*kind, axes.clone(), t.calls, t.bytes_sent)).collect();
        serde_json::to_vec(&rows).unwrap_or_default().put(to);
    }

    fn take(from: &mut &[u8]) -> Option<TrafficTable> {
        let rows: Vec<Row> = serde_json::from_slice(&Vec::<u8>::take(from)?).ok()?;
        let row = |(kind, axes, calls, bytes_sent): Row| ((kind, axes), Traffic { calls, bytes_sent });
        Some(rows.into_iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_less_is_nothing() {
        let stepped = Stepped { outputs: vec![None, Some(vec![1, 2, 3]), Some(vec![])], given_up: true, timed: None };
        let bytes = stepped.bytes();
        let back = Stepped::of(&bytes).unwrap();
        assert_eq!((back.outputs, back.given_up), (stepped.outputs, true));
        (0..bytes.len()).for_each(|cut| assert!(Stepped::of(&bytes[..cut]).is_none(), "{cut}"));
        let row = |kind, calls| ((kind, vec![AxisId(1)]), Traffic { calls, bytes_sent: 7 });
        let table = TrafficTable::from([row(CommunicationKind::AllReduce, 1), row(CommunicationKind::Send, 2)]);
        assert_eq!(TrafficTable::of(&table.bytes()), Some(table));
        assert_eq!(<(u64, u64)>::of(&(3, 4).bytes()), Some((3, 4)));
        assert_eq!(Vec::<u8>::of(&u64::MAX.bytes()), None);
    }
}
