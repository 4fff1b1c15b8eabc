//! The trace has each operation, in order, with its addresses and what it waits for.

use super::cuda::{self, Dtype, Mode, Op};
use super::right::{Device, N};
use super::{SEEDS, whole};
use shardc_fakecuda::trace::{Row, Traced};

/// Rows without their devices, launches of graphs like any others.
fn rows() -> Vec<Row> {
    cuda::trace().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn entry(row: &Row) -> String {
    match &row.work {
        Traced::Launch { entry, .. } => entry.clone(),
        Traced::Copy { .. } => "copy".into(),
        Traced::Memset { .. } => "memset".into(),
        Traced::Product { .. } => "product".into(),
        Traced::Nccl { calls } => calls[0].call.clone(),
    }
}

#[test]
fn rows_are_what_was_told() {
    whole("traces::rows_are_what_was_told", || {
        for seed in 0..SEEDS {
            cuda::reset(seed);
            let device = Device::new(0).unwrap();
            let (event, back) = (cuda::event().unwrap(), cuda::event().unwrap());
            let comm = cuda::join(cuda::id().unwrap(), 1, 0).unwrap();
            let tell = || {
                device.scale(device.a, 9).unwrap();
                cuda::record(event, device.a).unwrap();
                cuda::follow(device.b, event).unwrap();
                cuda::clear(device.x, 8, device.b).unwrap();
                cuda::all_reduce(device.y, device.y, N, Dtype::ncclFloat32, Op::ncclSum, comm, device.b).unwrap();
                cuda::record(back, device.b).unwrap();
                cuda::follow(device.a, back).unwrap();
                device.add(device.a).unwrap();
            };
            tell();
            let first = rows();
            // Two copies of the device's beginning.
            assert_eq!(
                first.iter().map(entry).collect::<Vec<_>>(),
                ["copy", "copy", "scale_0", "memset", "all_reduce", "scale_1"]
            );
            let waits: Vec<(u32, Vec<u64>)> = first.iter().map(|row| (row.stream, row.waits.clone())).collect();
            assert_eq!(waits[2..], [(0, vec![]), (1, vec![2]), (1, vec![]), (0, vec![4])]);
            let Traced::Launch { grid, block, pointers, numbers, .. } = &first[2].work else { panic!() };
            assert_eq!((*grid, *block), ([3, 1, 1], [128, 1, 1]));
            assert_eq!(
                (pointers.as_slice(), numbers.as_slice()),
                ([device.x, device.factor, device.y].as_slice(), [9].as_slice())
            );
            let Traced::Nccl { calls } = &first[4].work else { panic!() };
            assert_eq!(
                (calls[0].size, calls[0].count, calls[0].from, calls[0].to),
                (1, N as u64, Some(device.y), Some(device.y))
            );
            assert_eq!((calls[0].dtype.as_str(), calls[0].op.as_deref()), ("f32", Some("sum")));

            cuda::begin(device.a, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            tell();
            let graph = cuda::end(device.a).unwrap();
            assert_eq!(rows().len(), 6, "a capture does nothing");
            for _ in 0..2 {
                cuda::launch_graph(graph, device.a).unwrap();
            }
            let all = rows();
            for launch in 1..3 {
                for (row, told) in all[2 + 4 * launch..].iter().zip(&first[2..]) {
                    assert_eq!((row.stream, &row.work), (told.stream, &told.work));
                    assert_eq!(row.row, told.row + 4 * launch as u64);
                }
                // The first launch begins behind what its stream did last, the second behind the
                // first.
                assert_eq!(all[2 + 4 * launch].waits, [vec![5], vec![]][launch - 1]);
                assert_eq!(all[3 + 4 * launch].waits, [2 + 4 * launch as u64]);
            }
            // Another graph, whose last row is of the other stream.
            cuda::begin(device.a, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            device.scale(device.a, 1).unwrap();
            cuda::record(event, device.a).unwrap();
            cuda::follow(device.b, event).unwrap();
            cuda::clear(device.x, 4, device.b).unwrap();
            cuda::record(back, device.b).unwrap();
            cuda::follow(device.a, back).unwrap();
            let graph = cuda::end(device.a).unwrap();
            cuda::launch_graph(graph, device.a).unwrap();
            device.add(device.a).unwrap();
            cuda::launch_graph(graph, device.a).unwrap();
            let waits: Vec<(u32, Vec<u64>)> = rows()[14..].iter().map(|row| (row.stream, row.waits.clone())).collect();
            assert_eq!(waits, [(0, vec![13]), (1, vec![14]), (0, vec![14, 15]), (0, vec![15, 16]), (1, vec![17])]);
            cuda::wait_all().unwrap();
            assert_eq!(cuda::reports(), "");
        }
    });
}
