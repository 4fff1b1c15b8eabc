//! Products of matrices: candidates, results, and what the manual refuses.

use super::cuda::{self, Answer, Product, Sizes};
use super::right::{Device, N};
use super::{SEEDS, whole};

const SIZES: Sizes = Sizes { m: 5, n: 7, k: 3, leading: 6, room: 1 << 20, alignment: 16 };

/// `A` is `i + 10 j`, `B` is 1 where `i = j % 3`; both are behind one another in `x`.
fn filled(device: &Device) -> Answer<[u64; 4]> {
    let mut values = vec![f32::NAN; N];
    for j in 0..3 {
        (0..5).for_each(|i| values[j * 6 + i] = (i + 10 * j) as f32);
    }
    for j in 0..7 {
        (0..3).for_each(|i| values[64 + j * 3 + i] = f32::from(u8::from(i == j % 3)));
    }
    cuda::write_on(device.x, &values, device.a)?;
    Ok([device.x, device.x + 256, device.y, device.y])
}

fn wanted() -> Vec<f32> {
    (0..7).flat_map(|j| (0..5).map(move |i| (i + 10 * (j % 3)) as f32)).collect()
}

#[test]
fn every_candidate_multiplies() {
    whole("products::every_candidate_multiplies", || {
        for seed in 0..SEEDS {
            cuda::reset(seed);
            let device = Device::new(0).unwrap();
            let matrices = filled(&device).unwrap();
            let product = Product::new(SIZES).unwrap();
            let candidates = product.candidates(8).unwrap();
            assert!(candidates.len() > 1 && candidates.iter().any(|(_, room)| *room > 0));
            let room = (cuda::allocate(1 << 20).unwrap(), 1 << 20);
            for (data, bytes) in candidates {
                assert_eq!(product.check(data), Ok(bytes));
                cuda::clear(device.y, N * 4, device.a).unwrap();
                product.run(Some(data), matrices, 0.0, room, device.a).unwrap();
                product.run(Some(data), matrices, 2.0, room, device.a).unwrap();
                let want: Vec<f32> = wanted().into_iter().map(|x| 3.0 * x).collect();
                assert_eq!(cuda::read_on(device.y, 35, device.a).unwrap(), want);
            }
            assert_eq!(cuda::reports(), "");
        }
    });
}

#[test]
fn the_first_candidate_may_fail() {
    whole("products::the_first_candidate_may_fail", || {
        cuda::set("FIRST_ALGO", "fails");
        cuda::reset(1);
        let device = Device::new(0).unwrap();
        let matrices = filled(&device).unwrap();
        let product = Product::new(SIZES).unwrap();
        let room = (cuda::allocate(1 << 20).unwrap(), 1 << 20);
        let answers: Vec<Answer> = product
            .candidates(3)
            .unwrap()
            .iter()
            .map(|(data, _)| product.run(Some(*data), matrices, 0.0, room, device.a))
            .collect();
        assert_eq!(answers, [Err(15), Ok(()), Ok(())]);
        cuda::set("FIRST_ALGO", "");
        cuda::set("FAULT", "matmul:1:13");
        cuda::reset(1);
        let device = Device::new(0).unwrap();
        let product = Product::new(Sizes { room: 0, ..SIZES }).unwrap();
        let only = product.candidates(9).unwrap();
        assert_eq!(only.len(), 1);
        let matrices = filled(&device).unwrap();
        assert_eq!(product.run(Some(only[0].0), matrices, 0.0, (0, 0), device.a), Err(13));
    });
}

/// What is changed of the matrices' addresses, and of the room.
type Change = fn(&mut [u64; 4], &mut (u64, usize));

#[test]
fn what_the_manual_refuses_is_refused() {
    whole("products::what_the_manual_refuses_is_refused", || {
        let refused = |sizes: Sizes, change: Change, code: u32, report: &str| {
            cuda::reset(1);
            let device = Device::new(0).unwrap();
            let product = Product::new(sizes).unwrap();
            let data = product.candidates(1).unwrap()[0].0;
            let (mut matrices, mut room) = (filled(&device).unwrap(), (cuda::allocate(1 << 20).unwrap(), 1 << 20));
            change(&mut matrices, &mut room);
            let answer = product.run(Some(data), matrices, 0.0, room, device.a).and_then(|()| cuda::wait_all());
            assert_eq!(answer, Err(code), "{report}");
            assert!(cuda::reports().contains(report), "{report}: {}", cuda::reports());
        };
        refused(Sizes { leading: 4, ..SIZES }, |_, _| {}, 7, "the leading dimension of `A` is 4");
        refused(SIZES, |matrices, _| matrices[0] += 4, 7, "no multiple of 16 bytes");
        refused(SIZES, |_, room| room.1 = 16, 7, "the workspace has 16 bytes");
        refused(SIZES, |_, room| room.0 += 128, 7, "no multiple of 256 bytes");
        refused(SIZES, |matrices, _| matrices[3] = matrices[0], 7, "`D` is written and lies in the memory of");
        refused(SIZES, |matrices, _| (matrices[2], matrices[3]) = (matrices[2] + 1088, matrices[3] + 1088), 700, "`D`: bytes");
        refused(SIZES, |_, room| room.1 = 1 << 21, 700, "`workspace`: bytes");
        refused(SIZES, |matrices, _| matrices[1] = 4096, 700, "no memory of a device");
    });
}

#[test]
fn candidates_are_of_one_product() {
    whole("products::candidates_are_of_one_product", || {
        cuda::reset(1);
        let device = Device::new(0).unwrap();
        let matrices = filled(&device).unwrap();
        let product = Product::new(SIZES).unwrap();
        let other = Product::new(Sizes { k: 2, ..SIZES }).unwrap();
        let data = other.candidates(1).unwrap()[0].0;
        assert_eq!(product.check(data), Err(15));
        assert_eq!(product.run(Some(data), matrices, 0.0, (0, 0), device.a), Err(15));
        assert_eq!(product.check([7; 8]), Err(7));
        // What the library chooses by itself may sum in parts.
        assert_eq!(product.run(None, matrices, 0.0, (0, 0), device.a), Err(7));
        assert!(cuda::reports().contains("reduction schemes"), "{}", cuda::reports());
    });
}
