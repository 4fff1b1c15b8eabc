//! The order of a program as files have it: each micro-batch as its distance from the one that
//! would come next of the same task or message, so that long orders pack into little.

use super::Row;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::HashMap;

/// A row whose micro-batches are such distances.
#[derive(Serialize, Deserialize)]
enum Packed {
    Run(u32, i64),
    Exchange(Vec<(u32, i64)>),
}

/// The micro-batch that would come next of each task and of each message.
#[derive(Default)]
struct Next {
    tasks: HashMap<u32, u64>,
    messages: HashMap<u32, u64>,
}

fn distance(next: &mut HashMap<u32, u64>, of: u32, time: u64) -> i64 {
    let next = next.entry(of).or_default();
    let distance = time.wrapping_sub(*next);
    *next = time.wrapping_add(1);
    distance as i64
}

fn time(next: &mut HashMap<u32, u64>, of: u32, distance: i64) -> u64 {
    let next = next.entry(of).or_default();
    let time = next.wrapping_add(distance as u64);
    *next = time.wrapping_add(1);
    time
}

/// Writes the rows.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(rows: &[Row], serializer: S) -> Result<S::Ok, S::Error> {
    let mut next = Next::default();
    let packed = |row: &Row| match row {
        Row::Run { task, time } => Packed::Run(*task, distance(&mut next.tasks, *task, *time)),
        Row::Exchange(messages) => {
            let messages = messages.iter().map(|(message, time)| (*message, distance(&mut next.messages, *message, *time)));
            Packed::Exchange(messages.collect())
        }
    };
    rows.iter().map(packed).collect::<Vec<Packed>>().serialize(serializer)
}

/// Reads what [`serialize`] has written. The micro-batches of a damaged file may be any numbers.
///
/// # Errors
/// Those of the deserializer.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Row>, D::Error> {
    let mut next = Next::default();
    let row = |packed: Packed| match packed {
        Packed::Run(task, distance) => Row::Run { task, time: time(&mut next.tasks, task, distance) },
        Packed::Exchange(messages) => {
            let messages = messages.into_iter().map(|(message, distance)| (message, time(&mut next.messages, message, distance)));
            Row::Exchange(messages.collect())
        }
    };
    Ok(Vec::<Packed>::deserialize(deserializer)?.into_iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bincode::config::standard;
    use bincode::serde::{decode_from_slice, encode_to_vec};

    #[derive(Serialize, Deserialize)]
    struct Order(#[serde(with = "super")] Vec<Row>);

    #[test]
    fn rows_come_back_and_those_in_turn_are_short() {
        let run = |task, time| Row::Run { task, time };
        let mut rows: Vec<Row> = (0..1000).map(|time| run(0, time)).collect();
        rows.extend([run(1, 3), run(1, 0), run(0, u64::MAX), Row::Exchange(vec![(2, 5), (2, 6), (3, 0)]), run(1, u64::MAX / 2)]);
        let bytes = encode_to_vec(Order(rows.clone()), standard()).expect("it can be written");
        let (Order(again), _) = decode_from_slice(&bytes, standard()).expect("it can be read");
        assert_eq!(again, rows);
        assert!(bytes[3..3003].chunks(3).all(|row| row == [0, 0, 0]), "the micro-batches of a task in turn are all 0");
    }
}
