//! `bench`: the machine, its kernels, and the steps of a job.

use crate::support::{example, folder, shardc};
use serde_json::Value;

#[test]
fn kernels_stand_beside_the_peaks() {
    let here = folder("bench_kernels");
    let ran = shardc(&here, &["bench", "--only", "softmax 768x128"]).expect(0);
    let mut lines = ran.out.lines();
    let machine = lines.next().expect("the machine");
    assert!(machine.starts_with("this machine by ") && machine.contains("GFLOP/s in products of f32, "), "{machine}");
    let head: Vec<&str> = lines.next().expect("a head").split_whitespace().collect();
    assert_eq!(head.join(" "), "form launches us each GFLOP/s GB/s of peak what");
    let kernel = lines.next().expect("a kernel");
    assert!(kernel.trim_start().starts_with("rowwise") && kernel.ends_with("softmax 768x128"), "{kernel}");
    assert_eq!(lines.next(), None);
}

#[test]
fn a_step_is_the_sum_of_its_launches() {
    let here = folder("bench_job");
    let (model, spec) = (example("digits/model.onnx"), example("digits/dp2-tp2.shard"));
    let job = [&model[..], "--spec", &spec];
    let ran = shardc(&here, &[&["bench"], &job[..], &["--steps", "3", "--format", "json"]].concat()).expect(0);
    let report: Value = serde_json::from_str(&ran.out).expect("JSON");
    let number = |value: &Value| value.as_f64().expect("a number");
    let lines = report["kernels"].as_array().expect("kernels");
    let flops: f64 = lines.iter().map(|line| number(&line["flops"])).sum();
    assert_eq!(number(&report["step"]["flops"]), 4.0 * flops, "four ranks");
    let seconds: f64 = lines.iter().map(|line| number(&line["seconds"])).sum();
    assert!(seconds > 0.0 && seconds <= number(&report["step"]["seconds"]) * 4.0, "{seconds}");
    let updates = lines.iter().filter(|line| line["what"].as_str().is_some_and(|what| what.contains("sgd")));
    let bytes: f64 = updates.map(|line| number(&line["bytes"])).sum();
    let least = 4.0 * bytes / number(&report["copy_gbytes"]) / 1e9;
    assert!(least > 0.0 && (number(&report["step"]["update_seconds"]) / least - 1.0).abs() < 1e-9, "{report}");
    for form in ["contract", "all_reduce", "map"] {
        assert!(lines.iter().any(|line| line["form"] == form), "{form}");
    }
    let text = shardc(&here, &[&["bench"], &job[..], &["--steps", "1"]].concat()).expect(0);
    assert!(text.out.contains("are at ") && text.out.contains("of the rate of products\n"), "{}", text.out);
    shardc(&here, &["bench", "none.onnx", "--spec", &spec]).expect(1);
}
