//! Reads the statements about state and numbers: precision, recompute, batchnorm, device, init,
//! freeze, train, tie, untie, accept.

use super::context::{Context, quote, suggestion};
use super::reader::Reader;
use super::syntax::{Form, Value};
use super::values::{above_zero, bytes, choice, float_type, head, name_ref, pattern, positive, scope};
use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::spec::{
    FloatType, INITIAL_SCALE, Init, InitRule, Located, LossScale, Precision, Recompute, SCALE_INTERVAL, Spec, StatisticsGroups,
    Tie,
};

pub fn precision(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    use FloatType::{Bf16, F16, F32, Tf32};
    let compute = r.optional("compute", float_type(&[F32, Tf32, Bf16, F16]));
    let gradients = r.optional("gradients", float_type(&[F32, Bf16, F16]));
    let master = r.optional("master", float_type(&[F32]));
    let reduce = r.optional("reduce", float_type(&[F32, Bf16, F16]));
    let loss_scale = r.optional("loss_scale", loss_scale);
    let precision =
        Precision { compute: compute?, gradients: gradients?, master: master?, reduce: reduce?, loss_scale: loss_scale? };
    if precision == Precision::default() {
        r.lacks("an option");
    }
    spec.precision = Some(r.located(precision));
    Some(())
}

fn loss_scale(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<LossScale> {
    if !value.text.text.starts_with(|c: char| c.is_alphabetic()) {
        return above_zero(value, subject, context).map(LossScale::Constant);
    }
    let (function, arguments) = head(value, subject, &["dynamic"], context)?;
    let mut r = Reader::new(function, "dynamic(initial=65536, interval=2000)", value.text.source, arguments, context);
    let initial = r.optional("initial", above_zero);
    let interval = r.optional("interval", positive);
    r.finish();
    Some(LossScale::Dynamic { initial: initial?.unwrap_or(INITIAL_SCALE), interval: interval?.unwrap_or(SCALE_INTERVAL) })
}

pub fn recompute(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let budget = r.optional("budget", bytes)?;
    let line = match budget {
        Some(budget) => r.located(Recompute::Budget(budget)),
        None => r.value("a pattern, `selective` or `budget=`", recomputed)?,
    };
    spec.recompute.push(line);
    Some(())
}

fn recomputed(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<Located<Recompute>> {
    let source = value.text.source;
    match value.form {
        Form::Word if value.text.text == "selective" => Some(Located { value: Recompute::Selective, source }),
        Form::Name { name, transposed: false } if !name.is_empty() => {
            scope(value, subject, context).map(|scope| Located { value: Recompute::Scope(scope.value), source })
        }
        _ => {
            let message =
                format!("{subject} must be `selective`, `budget=` or a pattern in quotes, not {}", quote(value.text.text));
            let help =
                suggestion(value.text.text, ["selective"].into_iter(), || "write for example `recompute \"*.h.*\"`".into());
            context.report(source, Diagnostic::error(message).help(help));
            None
        }
    }
}

pub fn freeze(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    r.value("a pattern", pattern).map(|pattern| spec.freeze.push(pattern))
}

pub fn train(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    r.value("a pattern", pattern).map(|pattern| spec.train.push(pattern))
}

pub fn untie(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    r.value("a pattern", pattern).map(|pattern| spec.untie.push(pattern))
}

pub fn accept(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    r.required("lost", choice(&[("parameters", ())]))?;
    spec.accept_lost = Some(r.located(()));
    Some(())
}

pub fn batchnorm(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let groups = [("microbatch", StatisticsGroups::Microbatch), ("rank", StatisticsGroups::Rank)];
    let groups = r.required("statistics", choice(&groups))?;
    spec.batchnorm = Some(r.located(groups));
    Some(())
}

pub fn device(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let memory = r.required("memory", bytes)?;
    spec.device_memory = Some(r.located(memory));
    Some(())
}

pub fn init(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let pattern = r.value("a pattern", pattern);
    let rule = r.value("values such as `auto`", init_rule);
    spec.init.push(r.located(Init { pattern: pattern?, rule: rule? }));
    Some(())
}

fn init_rule(value: &Value<'_>, subject: &str, context: &mut Context<'_>) -> Option<InitRule> {
    let (function, arguments) = head(value, subject, &["auto", "normal", "zeros", "ones"], context)?;
    let example = if function == "normal" { "normal(std=0.02)" } else { function };
    let mut r = Reader::new(function, example, value.text.source, arguments, context);
    let rule = match function {
        "normal" => {
            let std = match r.next_value() {
                Some(std) => above_zero(std, "`std`", r.context),
                None => r.required("std", above_zero),
            };
            std.map(|std| InitRule::Normal { std })
        }
        "zeros" => Some(InitRule::Zeros),
        "ones" => Some(InitRule::Ones),
        _ => Some(InitRule::Auto),
    };
    r.finish();
    rule
}

pub fn tie(r: &mut Reader<'_, '_, '_>, spec: &mut Spec) -> Option<()> {
    let first = r.value("a quoted name", name_ref);
    let second = match r.next_value() {
        Some(value) => name_ref(value, "`tie`", r.context).map(Some),
        None => Some(None),
    };
    let (first, second) = (first?, second?);
    match &second {
        Some(second) if second.value.name == first.value.name => {
            let error = Diagnostic::error("a parameter is tied to itself").help("name the other one, or write the name once");
            r.context.report(second.source, error);
        }
        None if first.value.transposed => {
            let error = Diagnostic::error("`^T` needs two names").help("the second name is the transpose of the first");
            r.context.report(first.source, error);
        }
        _ => {}
    }
    spec.tie.push(r.located(Tie { first, second }));
    Some(())
}
