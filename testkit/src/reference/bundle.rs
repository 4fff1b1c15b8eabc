//! Bundle: plain loops, random instances, other sizes.

use super::draw::Draw;
use super::{Judged, Try, run};
use shardc_ir::kernel::{Bundle, Kernel, Source};

impl Judged for Bundle {
    fn run(&self, reads: &[Vec<f64>], out: &mut [Vec<f64>], coordinates: &[u64]) {
        for (member, first) in self.members.iter().zip(self.results()) {
            let read = |source: &Source| match *source {
                Source::Read(at) => reads[at as usize].clone(),
                Source::Write(at) => out[at as usize].clone(),
            };
            let own: Vec<Vec<f64>> = member.reads.iter().map(read).collect();
            let results = first..first + member.kernel.map().outputs.len();
            let made = run(&member.kernel.alone(), &own, out[results.clone()].to_vec(), coordinates);
            out[results].clone_from_slice(&made);
        }
    }

    fn resize(&mut self, to: &mut dyn FnMut(u64) -> u64) {
        // Members side by side change each for itself, rows and their width in all members alike.
        if self.rows == 1 && self.is_side_by_side() {
            self.members.iter_mut().for_each(|member| member.kernel.map_mut().resize(to));
            return;
        }
        let width = self.members.iter().filter_map(|member| member.kernel.width(self.rows)).max().unwrap();
        let (rows, new_width) = (to(self.rows), to(width));
        for member in &mut self.members {
            *member = member.over(self.rows, self.rows).expect("rows that are alike");
            let mut is_first = true;
            member.kernel.map_mut().resize(&mut |size| match size {
                _ if std::mem::take(&mut is_first) => rows,
                size if size == width => new_width,
                size => size,
            });
        }
        self.rows = rows;
    }

    fn instances(each: &mut Try<'_>) {
        let mut random = Draw::new(31);
        for (rows, width) in [(1, 1), (1, 70_000), (5, 3), (7, 20_000), (300, 17), (5_000, 9), (129, 513)] {
            let kernel = Kernel::Bundle(Bundle::softmax(rows, width));
            let reads = random.operands(&kernel);
            each(&kernel, &reads, 1e-6 * width as f64);
        }
    }
}
