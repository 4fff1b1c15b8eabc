//! Reads the statements about the training step: batch, bind, loss, optimizer, schedule, clip,
//! seed.

use super::context::quote;
use super::reader::Reader;
use super::values::{
    above_zero, below_one, boolean, choice, integer, microbatches, name, not_negative, positive, samples, share, steps, whole,
};
use shardc_ir::diagnostic::{Diagnostic, counted};
use shardc_ir::spec::{Batch, Decayed, Located, Loss, Moments, Optimizer, OptimizerRule, Schedule, Spec};
use shardc_ir::train::Decay;

pub fn batch(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let size = r.value("a size", samples);
    let microbatches = r.option("microbatches", 1, microbatches);
    spec.batch = Some(r.located(Batch { size: size?, microbatches: microbatches? }));
    Some(())
}

pub fn bind(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let options = r.take_options();
    if options.is_empty() {
        r.lacks("dimensions of the model");
    }
    for (key, value) in options {
        if let Some(size) = positive(value, &quote(key.text), r.context) {
            spec.bind.insert(key.text.to_string(), Located { value: size, source: key.source });
        }
    }
    Some(())
}

pub fn loss(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    type Read = fn(&mut Reader<'_, '_, '_>) -> Option<Loss>;
    let read: [(&str, Read); 3] = [("cross_entropy", cross_entropy), ("mse", mse), ("bce_with_logits", bce_with_logits)];
    let own = if r.has_value() { None } else { r.optional("output", name)? };
    let loss = match own {
        Some(name) => Loss::Output { name },
        None => r.kind("a kind such as `mse`", choice(&read))?(r)?,
    };
    spec.loss = Some(r.located(loss));
    Some(())
}

/// `output=` names a loss that the model computes; the option for what the loss is of is called
/// otherwise.
fn of_output(option: &'static str, r: &mut Reader<'_, '_, '_>) -> Option<Option<Located<String>>> {
    r.never(
        "output",
        &format!("write `{option}=`, which names the model's output; `output=` alone names a loss that the model computes"),
    );
    r.optional(option, name)
}

fn cross_entropy(r: &mut Reader<'_, '_, '_>) -> Option<Loss> {
    let logits = of_output("logits", r);
    let labels = r.required("labels", name);
    let ignore_index = r.optional("ignore_index", integer);
    let label_smoothing = r.option("label_smoothing", 0.0, share);
    let class_axis = r.option("class_axis", -1, integer);
    Some(Loss::CrossEntropy {
        logits: logits?,
        labels: labels?,
        ignore_index: ignore_index?,
        label_smoothing: label_smoothing?,
        class_axis: class_axis?,
    })
}

fn mse(r: &mut Reader<'_, '_, '_>) -> Option<Loss> {
    let prediction = of_output("prediction", r);
    let labels = r.required("labels", name);
    Some(Loss::Mse { prediction: prediction?, labels: labels? })
}

fn bce_with_logits(r: &mut Reader<'_, '_, '_>) -> Option<Loss> {
    let logits = of_output("logits", r);
    let labels = r.required("labels", name);
    Some(Loss::BceWithLogits { logits: logits?, labels: labels? })
}

pub fn optimizer(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    const ADAM: Moments = Moments { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    // With the weight decay that each has by default: those of PyTorch, and of NVIDIA's Apex for
    // lamb, which PyTorch lacks.
    let kinds = [
        ("sgd", (OptimizerRule::Sgd { momentum: 0.0, nesterov: false }, 0.0)),
        ("adam", (OptimizerRule::Adam(ADAM), 0.0)),
        ("adamw", (OptimizerRule::AdamW(ADAM), 0.01)),
        ("lamb", (OptimizerRule::Lamb(Moments { eps: 1e-6, ..ADAM }), 0.01)),
    ];
    let (default, weight_decay) = r.kind("a kind such as `adamw`", choice(&kinds))?;
    let lr = r.required("lr", not_negative);
    let rule = match default {
        OptimizerRule::Sgd { .. } => sgd(r),
        OptimizerRule::Adam(default) => moments(r, default).map(OptimizerRule::Adam),
        OptimizerRule::AdamW(default) => moments(r, default).map(OptimizerRule::AdamW),
        OptimizerRule::Lamb(default) => moments(r, default).map(OptimizerRule::Lamb),
    };
    let weight_decay = r.option("weight_decay", weight_decay, not_negative);
    let decay = r.option("decay", Decayed::All, choice(&[("matrices", Decayed::Matrices), ("all", Decayed::All)]));
    spec.optimizer = Some(r.located(Optimizer { lr: lr?, weight_decay: weight_decay?, decay: decay?, rule: rule? }));
    Some(())
}

fn sgd(r: &mut Reader<'_, '_, '_>) -> Option<OptimizerRule> {
    let momentum = r.option("momentum", 0.0, below_one);
    let nesterov = r.option("nesterov", false, |value, subject, context| {
        let nesterov = boolean(value, subject, context)?;
        if nesterov && momentum == Some(0.0) {
            let error = Diagnostic::error("`nesterov` needs `momentum` above 0").help("add an option such as `momentum=0.9`");
            context.report(value.text.source, error);
        }
        Some(nesterov)
    });
    Some(OptimizerRule::Sgd { momentum: momentum?, nesterov: nesterov? })
}

fn moments(r: &mut Reader<'_, '_, '_>, default: Moments) -> Option<Moments> {
    let beta1 = r.option("beta1", default.beta1, below_one);
    let beta2 = r.option("beta2", default.beta2, below_one);
    let eps = r.option("eps", default.eps, above_zero);
    Some(Moments { beta1: beta1?, beta2: beta2?, eps: eps? })
}

pub fn schedule(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let cosine = |steps, min_lr| Decay::Cosine { steps, min_lr };
    let linear = |steps, min_lr| Decay::Linear { steps, min_lr };
    type Falling = fn(u64, f64) -> Decay;
    let kinds: [(&str, Option<Falling>); 3] = [("constant", None), ("cosine", Some(cosine)), ("linear", Some(linear))];
    let kind = r.kind("a kind such as `cosine`", choice(&kinds))?;
    let warmup = r.option("warmup", 0, steps);
    let decay = match kind {
        None => Some(Decay::Constant),
        Some(falling) => {
            let steps = r.required("steps", |value, subject, context| {
                let steps = steps(value, subject, context)?;
                if let Some(warmup) = warmup.filter(|warmup| steps <= *warmup) {
                    let error = Diagnostic::error(format!(
                        "a schedule of {} ends before its warm-up of {warmup}",
                        counted(steps, "step")
                    ));
                    context
                        .report(value.text.source, error.help(format!("`steps` counts from step 0 and must be above {warmup}")));
                }
                Some(steps)
            });
            let min_lr = r.option("min_lr", 0.0, not_negative);
            steps.zip(min_lr).map(|(steps, min_lr)| falling(steps, min_lr))
        }
    };
    spec.schedule = Some(r.located(Schedule { warmup: warmup?, decay: decay? }));
    Some(())
}

pub fn clip(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let norm = r.required("norm", above_zero)?;
    spec.clip = Some(r.located(norm));
    Some(())
}

pub fn seed(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let seed = r.value("a number", whole)?;
    spec.seed = Some(r.located(seed));
    Some(())
}
