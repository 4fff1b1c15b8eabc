//! What whole steps take beside what their parts add up to.
//!
//! On a machine that does other things too, a rank that is held up holds up all that wait for it,
//! so steps take longer than their parts say, which were timed one by one.

use super::fit::rounded;
use super::observed::median;
use shardc_ir::plan::set::PlanSet;
use shardc_simulator::cluster::Device;
use shardc_simulator::run::step;

/// Makes all that a device does take as many times as long as whole steps of these programs usually
/// did, each of which took so many seconds.
pub fn stretched(device: Device, steps: &[(&PlanSet, f64)]) -> Device {
    let times = |(programs, seconds): &(&PlanSet, f64)| {
        let told = step(programs, &device).ok()?.seconds;
        (told > 0.0).then_some(seconds / told)
    };
    let times: Vec<f64> = steps.iter().filter_map(times).collect();
    if times.is_empty() { device } else { stretch(device, median(times)) }
}

/// The device on which everything takes so many times as long.
fn stretch(mut device: Device, times: f64) -> Device {
    let longer = |seconds: &mut f64| *seconds = rounded(*seconds * times);
    let slower = |rate: &mut f64| *rate = rounded(*rate / times);
    longer(&mut device.step);
    for kernel in &mut device.kernels {
        longer(&mut kernel.start);
        slower(&mut kernel.flops);
        slower(&mut kernel.bytes);
        kernel.samples.iter_mut().for_each(|[.., seconds]| longer(seconds));
    }
    for link in &mut device.links {
        longer(&mut link.start);
        longer(&mut link.hop);
        slower(&mut link.bandwidth);
        for cost in link.calls.values_mut() {
            longer(&mut cost.start);
            slower(&mut cost.bandwidth);
        }
    }
    device
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::observed::Observed;
    use crate::calibration::{fit::fit, probes};
    use shardc_executor::bench::Peaks;

    #[test]
    fn a_device_takes_as_long_as_steps_did() {
        let jobs: Vec<_> = probes::probes(2).iter().filter_map(|probe| probe.job().ok()).collect();
        let programs: Vec<&PlanSet> = jobs.iter().filter_map(|job| job.training().ok()).collect();
        let device = fit(2, Peaks { flops: 1e11, bytes: 1e10 }, Observed::default());
        let seconds = |device: &Device, of: &PlanSet| step(of, device).expect("a step").seconds;
        let mut steps: Vec<(&PlanSet, f64)> = programs.iter().map(|of| (*of, 1.5 * seconds(&device, of))).collect();
        assert!(steps.len() > 6, "{} probes", steps.len());
        // One that was disturbed much changes nothing.
        steps[0].1 *= 9.0;
        let longer = stretched(device.clone(), &steps);
        for of in programs {
            let times = seconds(&longer, of) / seconds(&device, of);
            assert!((times - 1.5).abs() < 1e-2, "{times}");
        }
    }
}
