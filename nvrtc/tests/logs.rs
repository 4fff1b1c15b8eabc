//! What NVRTC says of kernels, from its own logs.

use shardc_nvrtc::Resources;

const LOGS: [&str; 4] = [
    include_str!("logs/nvrtc-13.5-sm_90.log"),
    include_str!("logs/nvrtc-13.5-sm_80.log"),
    include_str!("logs/nvrtc-12.9-sm_90.log"),
    include_str!("logs/nvrtc-12.9-sm_80.log"),
];

fn kernel(entry: &str, [registers, shared, stack, spill_stores, spill_loads]: [u32; 5]) -> Resources {
    Resources { entry: entry.to_string(), registers, shared, stack, spill_stores, spill_loads }
}

#[test]
fn each_kernel_of_a_text_has_its_resources() {
    let expected = vec![
        kernel("add", [10, 0, 0, 0, 0]),
        // The function that it calls, and which calls itself, spills.
        kernel("calls", [24, 0, 16, 16, 16]),
        kernel("local_", [32, 0, 256, 0, 0]),
        kernel("spills", [64, 0, 1032, 1248, 1248]),
        kernel("sums", [10, 1200, 0, 0, 0]),
    ];
    for log in LOGS {
        assert_eq!(Resources::of_log(log), Ok(expected.clone()), "{log}");
    }
}

#[test]
fn an_incomplete_log_is_refused() {
    for log in LOGS {
        for (at, line) in log.lines().enumerate() {
            let rest: String = log.lines().enumerate().filter(|(i, _)| *i != at).map(|(_, line)| format!("{line}\n")).collect();
            if line.contains(": Used ") {
                assert!(Resources::of_log(&rest).is_err(), "without `{line}`");
            }
        }
        for unit in ["bytes stack frame,", "registers,"] {
            let other = log.replace(&format!(" {unit}"), &format!("x {unit}"));
            assert!(Resources::of_log(&other).is_err(), "{unit}");
        }
        assert!(Resources::of_log(&log.replace("1248 bytes", "99999999999 bytes")).is_err());
    }
    assert!(Resources::of_log("").is_err());
}
