//! The spec language as users meet it: what parses into what, every error's exact words and place,
//! and text that is only noise.

use shardc_frontend::spec::{load, parse};
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::spec::{
    Batch, Blocks, Cut, Data, Decayed, DimSharding, FloatType, InitRule, Located, Loss, LossScale, Moments, Optimizer,
    OptimizerRule, PipelineSchedule, Precision, Recompute, Schedule, Spec, StatisticsGroups, ZeroStage,
};
use shardc_ir::train::Decay;
use std::path::Path;

const DP: AxisId = AxisId(0);
const PP: AxisId = AxisId(1);
const TP: AxisId = AxisId(2);

/// Every statement of the language once, as its description lists them.
const WHOLE: &str = r#"
    mesh      dp=2 pp=2 tp=2
    batch     8 microbatches=4              # global batch (dimension 0 of every input); must divide by the data axes times microbatches
    bind      seq=32                        # symbolic dimensions of the model
    loss      cross_entropy logits=logits labels=y ignore_index=-100 label_smoothing=0.0 class_axis=-1    # also: mse, bce_with_logits, output=NAME
    optimizer adamw lr=1e-3 beta1=0.9 beta2=0.95 eps=1e-8 weight_decay=0.1 decay=matrices    # also: sgd momentum= nesterov=, adam, lamb
    schedule  cosine warmup=100 steps=2000 min_lr=1e-4     # lr*(i+1)/(warmup+1), then cosine to min_lr; also: constant, linear
    clip      norm=1.0                      # gradients times min(1, norm/(global norm + 1e-6))
    data      axis=dp                       # split the batch of every input and label; axis=(dp,fsdp) for two
    tensor    axis=tp                       # find the column/row split of attention and MLP blocks
    shard     "*.c_attn.weight" [-, 3*tp]   # parameters, inputs, or any named value of the model
    zero      stage=3 axis=dp
    pipeline  axis=pp schedule=1f1b cut=balance            # or cut=after("*.h.1", "*.h.3"); gpipe, 1f1b, interleaved(chunks=2), zb-h1
    place     "*.branch3" stage=1           # a scope on a stage of its own: branches side by side
    precision compute=f16 gradients=f16 master=f32 reduce=f32 loss_scale=dynamic
    recompute "*.h.*"
    batchnorm statistics=microbatch
    sequence  axis=tp                       # split activations by tokens between the tp regions
    device    memory=80GiB                  # what a rank may use; default: unlimited
    init      "*" auto                      # weights for a model without them: matrices normal(0.02), scales 1, biases 0; or normal(std=…), zeros, ones
    freeze    "*.wpe.weight"
    train     "logit_scale"
    tie       "wte.weight" "onnx::MatMul_364"^T            # one parameter that the exporter wrote twice
    untie     "*"                           # separate parameters that the exporter merged because they were equal
    seed      1234
"#;

fn read(text: &str) -> Result<Spec, Vec<Diagnostic>> {
    parse(Path::new("job.shard"), text)
}

fn good(text: &str) -> Spec {
    read(text).unwrap_or_else(|errors| panic!("{text}\n{}", listing(text, &errors).join("\n")))
}

/// A good spec with axes dp, pp, tp of 2 ranks.
fn on_mesh(text: &str) -> Spec {
    good(&format!("mesh dp=2 pp=2 tp=2\n{text}"))
}

fn span(diagnostic: &Diagnostic) -> (usize, usize) {
    match &diagnostic.place {
        Some(Place::Text { span, .. }) => *span,
        place => panic!("not a place in the text: {place:?}"),
    }
}

/// `line:column [text at the place] message (label); help: help`.
fn listing(text: &str, errors: &[Diagnostic]) -> Vec<String> {
    let line = |error: &Diagnostic| {
        let (start, end) = span(error);
        let line = text[..start].matches('\n').count() + 1;
        let column = text[..start].chars().rev().take_while(|c| *c != '\n').count() + 1;
        let label = error.label.as_ref().map(|label| format!(" ({label})")).unwrap_or_default();
        let help = error.help.as_ref().map(|help| format!("; help: {help}")).unwrap_or_default();
        format!("{line}:{column} [{}] {}{label}{help}", &text[start..end], error.message)
    };
    errors.iter().map(line).collect()
}

fn text_of<T>(located: &Located<T>, text: &str) -> String {
    text[located.source.span.0..located.source.span.1].to_string()
}

#[test]
fn the_whole_language() {
    let spec = good(WHOLE);
    assert_eq!(spec.mesh(), Mesh::new([("dp".into(), 2), ("pp".into(), 2), ("tp".into(), 2)], 4));
    assert_eq!(spec.batch.as_ref().unwrap().value, Batch { size: 8, microbatches: 4 });
    assert_eq!(spec.bind["seq"].value, 32);
    let Loss::CrossEntropy { logits, labels, ignore_index, label_smoothing, class_axis } = &spec.loss.as_ref().unwrap().value
    else {
        panic!("not a cross entropy")
    };
    assert_eq!((logits.as_ref().unwrap().value.as_str(), labels.value.as_str()), ("logits", "y"));
    assert_eq!((*ignore_index, *label_smoothing, *class_axis), (Some(-100), 0.0, -1));
    let rule = OptimizerRule::AdamW(Moments { beta1: 0.9, beta2: 0.95, eps: 1e-8 });
    let optimizer = Optimizer { lr: 1e-3, weight_decay: 0.1, decay: Decayed::Matrices, rule };
    assert_eq!(spec.optimizer.as_ref().unwrap().value, optimizer);
    let schedule = Schedule { warmup: 100, decay: Decay::Cosine { steps: 2000, min_lr: 1e-4 } };
    assert_eq!(spec.schedule.as_ref().unwrap().value, schedule);
    assert_eq!(spec.learning_rate().unwrap().at(2000), 1e-4);
    assert_eq!(spec.clip.as_ref().unwrap().value, 1.0);
    assert_eq!(spec.data[0].value, Data { axes: vec![DP], on: None });
    assert_eq!((spec.tensor[0].value.axis, spec.sequence.as_ref().unwrap().value), (TP, TP));
    assert_eq!(spec.shard[0].value.pattern.value, "*.c_attn.weight");
    let dims: Vec<&DimSharding> = spec.shard[0].value.dims.iter().map(|dim| &dim.value).collect();
    assert_eq!(dims, [&DimSharding::Closed, &DimSharding::Split { blocks: Blocks::Equal(3), axes: vec![TP] }]);
    assert_eq!((spec.zero[0].value.stage, &spec.zero[0].value.axes), (ZeroStage::Parameters, &vec![DP]));
    let pipeline = &spec.pipeline.as_ref().unwrap().value;
    let schedule = PipelineSchedule::OneForwardOneBackward;
    assert_eq!((pipeline.axis, pipeline.schedule, &pipeline.cut), (PP, schedule, &Cut::Balance));
    assert_eq!((spec.place[0].value.pattern.value.as_str(), spec.place[0].value.stage), ("*.branch3", 1));
    let precision = Precision {
        compute: Some(FloatType::F16),
        gradients: Some(FloatType::F16),
        master: Some(FloatType::F32),
        reduce: Some(FloatType::F32),
        loss_scale: Some(LossScale::Dynamic { initial: 65_536.0, interval: 2_000 }),
    };
    assert_eq!(spec.precision.as_ref().unwrap().value, precision);
    assert_eq!(spec.recompute[0].value, Recompute::Scope("*.h.*".into()));
    assert_eq!(spec.batchnorm.as_ref().unwrap().value, StatisticsGroups::Microbatch);
    assert_eq!(spec.device_memory.as_ref().unwrap().value, 80 << 30);
    assert_eq!((spec.init[0].value.pattern.value.as_str(), spec.init[0].value.rule), ("*", InitRule::Auto));
    assert_eq!((spec.freeze[0].value.as_str(), spec.train[0].value.as_str()), ("*.wpe.weight", "logit_scale"));
    let tie = &spec.tie[0].value;
    assert_eq!((tie.first.value.name.as_str(), tie.first.value.transposed), ("wte.weight", false));
    let second = &tie.second.as_ref().unwrap().value;
    assert_eq!((second.name.as_str(), second.transposed), ("onnx::MatMul_364", true));
    assert_eq!((spec.untie[0].value.as_str(), spec.seed.as_ref().unwrap().value), ("*", 1234));
    assert_eq!(spec.require_training(), Ok(()));
}

#[test]
fn statements_know_their_place() {
    let spec = good(WHOLE);
    let shard = &spec.shard[0];
    assert_eq!(shard.source.line, 11);
    assert_eq!(text_of(shard, WHOLE), "shard     \"*.c_attn.weight\" [-, 3*tp]");
    assert_eq!(text_of(&shard.value.pattern, WHOLE), "\"*.c_attn.weight\"");
    assert_eq!(text_of(&shard.value.dims[1], WHOLE), "3*tp");
    assert_eq!(text_of(&spec.bind["seq"], WHOLE), "seq");
    assert_eq!(text_of(spec.tie[0].value.second.as_ref().unwrap(), WHOLE), "\"onnx::MatMul_364\"^T");
    let text = "\n\ntensor axis=tp # heads\nmesh tp=2";
    assert_eq!(text_of(&good(text).tensor[0], text), "tensor axis=tp");
}

#[test]
fn what_is_not_said_has_a_default() {
    let moments = |eps| Moments { beta1: 0.9, beta2: 0.999, eps };
    for (text, weight_decay, rule) in [
        ("optimizer sgd lr=0.1", 0.0, OptimizerRule::Sgd { momentum: 0.0, nesterov: false }),
        ("optimizer sgd lr=0.1 momentum=0.9 nesterov=true", 0.0, OptimizerRule::Sgd { momentum: 0.9, nesterov: true }),
        ("optimizer adam lr=0.1", 0.0, OptimizerRule::Adam(moments(1e-8))),
        ("optimizer adamw lr=0.1", 0.01, OptimizerRule::AdamW(moments(1e-8))),
        ("optimizer lamb lr=0.1", 0.01, OptimizerRule::Lamb(moments(1e-6))),
    ] {
        let expected = Optimizer { lr: 0.1, weight_decay, decay: Decayed::All, rule };
        assert_eq!(good(text).optimizer.unwrap().value, expected);
    }
    assert_eq!(good("batch 6").batch.unwrap().value, Batch { size: 6, microbatches: 1 });
    let Loss::CrossEntropy { logits: None, ignore_index: None, label_smoothing: 0.0, class_axis: -1, .. } =
        good("loss cross_entropy labels=y").loss.unwrap().value
    else {
        panic!("other defaults")
    };
    let pipeline = on_mesh("pipeline axis=pp").pipeline.unwrap().value;
    assert_eq!((pipeline.schedule, pipeline.cut), (PipelineSchedule::OneForwardOneBackward, Cut::Balance));
    let empty = good("");
    assert_eq!(empty.mesh(), Mesh::single());
    assert_eq!(empty.require_training().unwrap_err().len(), 3);
}

#[test]
fn forms_of_dimensions() {
    let split = |blocks, axes: &[AxisId]| DimSharding::Split { blocks, axes: axes.to_vec() };
    for (text, expected) in [
        ("-", DimSharding::Closed),
        ("?", DimSharding::Open),
        ("tp", split(Blocks::Equal(1), &[TP])),
        ("(dp,tp)", split(Blocks::Equal(1), &[DP, TP])),
        ("( dp , tp )", split(Blocks::Equal(1), &[DP, TP])),
        ("3*tp", split(Blocks::Equal(3), &[TP])),
        ("3 * (dp, tp)", split(Blocks::Equal(3), &[DP, TP])),
        ("(64|32|32)*tp", split(Blocks::Unequal(vec![64, 32, 32]), &[TP])),
        ("( 64 | 32 ) * (tp,dp)", split(Blocks::Unequal(vec![64, 32]), &[TP, DP])),
        ("[8:dp 32:tp]", DimSharding::Letters(vec![(8, vec![DP]), (32, vec![TP])])),
        ("[ 8 : (dp,pp)  3  32:tp ]", DimSharding::Letters(vec![(8, vec![DP, PP]), (3, vec![]), (32, vec![TP])])),
    ] {
        for (line, position, rank) in [(format!("[{text}]"), 0, 1), (format!("[ -,{text} , ? ]"), 1, 3)] {
            let spec = on_mesh(&format!("shard \"w\" {line}"));
            let dims = &spec.shard[0].value.dims;
            assert_eq!((dims.len(), &dims[position].value), (rank, &expected), "{line}");
        }
    }
}

#[test]
fn other_forms() {
    for (text, expected) in [
        ("mse labels=t", "Mse"),
        ("mse prediction=y labels=t", "Mse"),
        ("bce_with_logits logits=z labels=t", "BceWithLogits"),
        ("output=\"loss.1\"", "Output"),
    ] {
        let loss = good(&format!("loss {text}")).loss.unwrap().value;
        assert!(format!("{loss:?}").starts_with(expected), "{loss:?}");
    }
    for (text, expected) in [
        ("gpipe", PipelineSchedule::Gpipe),
        ("1f1b", PipelineSchedule::OneForwardOneBackward),
        ("interleaved(chunks=2)", PipelineSchedule::Interleaved { chunks: 2 }),
        ("zb-h1", PipelineSchedule::ZeroBubbleH1),
    ] {
        assert_eq!(on_mesh(&format!("pipeline axis=pp schedule={text}")).pipeline.unwrap().value.schedule, expected);
    }
    let Cut::After(scopes) = on_mesh("pipeline axis=pp cut=after(\"*.h.1\", \"*.h.3\")").pipeline.unwrap().value.cut else {
        panic!("not after")
    };
    assert_eq!(scopes.iter().map(|scope| scope.value.as_str()).collect::<Vec<_>>(), ["*.h.1", "*.h.3"]);
    for (text, expected) in [
        ("auto", InitRule::Auto),
        ("normal(std=0.5)", InitRule::Normal { std: 0.5 }),
        ("normal(0.5)", InitRule::Normal { std: 0.5 }),
        ("zeros", InitRule::Zeros),
        ("ones", InitRule::Ones),
    ] {
        assert_eq!(good(&format!("init \"*\" {text}")).init[0].value.rule, expected);
    }
    for (text, bytes) in [
        ("1B", 1),
        ("2KiB", 2 << 10),
        ("1.5GiB", 3 << 29),
        ("1TiB", 1 << 40),
        ("5KB", 5_000),
        ("5MB", 5_000_000),
        ("80GB", 80_000_000_000),
    ] {
        assert_eq!(good(&format!("device memory={text}")).device_memory.unwrap().value, bytes, "{text}");
    }
    let scale = good("precision compute=f16 loss_scale=1024").precision.unwrap().value.loss_scale;
    assert_eq!(scale, Some(LossScale::Constant(1024.0)));
    let tie = good("tie \"norm.weight\"").tie.remove(0).value;
    assert!(tie.second.is_none() && !tie.first.value.transposed);
    assert_eq!(good("seed 18446744073709551615").seed.unwrap().value, u64::MAX);
    assert_eq!(good("bind \"past + 1\"=7 batch=2").bind.keys().collect::<Vec<_>>(), ["batch", "past + 1"]);
}

#[test]
fn parts_of_the_model_may_differ() {
    let spec = on_mesh(
        "data axis=dp\ndata axis=(dp,tp) on=\"*.encoder\"\ntensor axis=tp\nzero stage=1 axis=dp\nzero stage=0 axis=dp on=\"head\"",
    );
    assert_eq!(spec.data[1].value.axes, [DP, TP]);
    assert_eq!(spec.data[1].value.on.as_ref().unwrap().value, "*.encoder");
    assert_eq!(spec.zero[1].value.stage, ZeroStage::Replicated);
}

#[test]
fn line_ends_blanks_and_comments_do_not_matter() {
    let plain = "mesh dp=2\nbatch 8\nfreeze \"a#b\"\n";
    let expected = good(plain);
    for text in [
        "mesh dp=2\r\nbatch 8\r\nfreeze \"a#b\"\r\n",
        "mesh dp=2\nbatch 8\nfreeze \"a#b\"",
        "\u{feff}mesh dp=2\nbatch 8\nfreeze \"a#b\"\n",
        "\tmesh\tdp = 2# two\n\n  batch\u{a0}8   # \"\n#\n\nfreeze\t\"a#b\"#\"#\n",
    ] {
        let spec = good(text);
        assert_eq!(spec.mesh(), expected.mesh(), "{text:?}");
        assert_eq!(spec.batch.unwrap().value, expected.batch.as_ref().unwrap().value);
        assert_eq!(spec.freeze[0].value, "a#b");
        assert_eq!(text_of(&spec.freeze[0], text), "\"a#b\"");
    }
}

/// `errors.txt` holds cases apart by blank lines: the lines of a spec, then its errors, indented.
/// `BLESS=1` writes what is reported now.
#[test]
fn every_error_says_what_and_where() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors.txt");
    let file = std::fs::read_to_string(&path).unwrap();
    let mut reported = vec![];
    for case in file.trim_end().split("\n\n") {
        let text = case.lines().filter(|line| !line.starts_with("    ")).collect::<Vec<_>>().join("\n");
        let errors = read(&text).expect_err(&text);
        let errors: String = listing(&text, &errors).iter().map(|line| format!("\n    {line}")).collect();
        reported.push(format!("{text}{errors}"));
    }
    assert!(reported.len() >= 60);
    let reported = reported.join("\n\n") + "\n";
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &reported).unwrap();
    }
    for (expected, reported) in file.split("\n\n").zip(reported.split("\n\n")) {
        assert_eq!(reported, expected);
    }
    assert_eq!(reported, file);
}

#[test]
fn files_that_are_no_specs() {
    let folder = std::env::temp_dir().join(format!("shardc-spec-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("job.shard");
    let error = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = load(&path).unwrap_err().remove(0);
        assert_eq!(error.place, Some(Place::File(path.clone())));
        error.message
    };
    assert_eq!(error(b"mesh dp=2\nbatch \xff\n"), "the spec is not UTF-8 text: see line 2");
    assert_eq!(error(&vec![b'#'; (1 << 20) + 1]), "the spec is larger than 1 MiB");
    std::fs::write(&path, vec![b'#'; 1 << 20]).unwrap();
    assert!(load(&path).is_ok());
    assert!(load(&folder).unwrap_err()[0].message.starts_with("cannot read the spec: "));
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(load(&path).unwrap_err()[0].message.starts_with("cannot read the spec: "));
}

#[test]
fn hostile_text_is_read_in_time() {
    let start = std::time::Instant::now();
    for unit in [
        "(", "[", "\"", "=", ",", "a ", "a=", "a\n", "[[", "[(", "[8:(a,", "[a|", "a(", "a=a(", "\"a\"^T ", "#", "(a|a", "\u{a0}",
    ] {
        for head in ["", "shard \"w\" ", "shard \"w\" [", "pipeline cut=after(", "mesh "] {
            for bytes in [1 << 12, 1 << 13, 1 << 14, 1 << 16] {
                let text = format!("{head}{}", unit.repeat(bytes / unit.len()));
                if let Err(errors) = read(&text) {
                    assert!(errors.iter().all(|error| text.get(span(error).0..span(error).1).is_some()));
                }
            }
        }
    }
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

/// Bytes of the whole language replaced, removed, doubled and moved: no panic, and every span is a
/// piece of the text.
#[test]
fn noise_never_panics() {
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let pieces = [
        "\"", "(", ")", "[", "]", "=", ",", "#", "*", "|", ":", "\n", "\r", "\t", "^T", "é", "\u{feff}", "0", "9e999", "-", "tp",
    ];
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..5_000 {
        let mut text: Vec<char> = WHOLE.chars().collect();
        for _ in 0..1 + random(6) {
            let at = random(text.len());
            let to = (at + random(12)).min(text.len());
            match random(4) {
                0 => drop(text.drain(at..to)),
                1 => text.splice(at..at, pieces[random(pieces.len())].chars()).for_each(drop),
                2 => text[at] = char::from(random(128) as u8),
                _ => {
                    let part: Vec<char> = text[at..to].to_vec();
                    let into = random(text.len());
                    text.splice(into..into, part).for_each(drop);
                }
            }
        }
        let text: String = text.into_iter().collect();
        match read(&text) {
            Ok(spec) => {
                accepted += 1;
                assert!(spec.shard.iter().all(|shard| text.get(shard.source.span.0..shard.source.span.1).is_some()));
            }
            Err(errors) => {
                refused += 1;
                assert!(!errors.is_empty());
                for error in errors {
                    let (start, end) = span(&error);
                    assert!(start < end && text.get(start..end).is_some(), "{start}..{end} of {text}\n{error}");
                }
            }
        }
    }
    assert!(accepted > 500 && refused > 2_000, "{accepted} accepted, {refused} refused");
}

#[test]
fn a_file_of_mistakes_is_read_to_the_thousandth() {
    let errors = |text: &str| parse(Path::new("job.shard"), text).expect_err("it is full of mistakes");
    assert_eq!(errors(&format!("mesh{}\n", " a=1".repeat(10_000))).len(), 1_000);
    let many = errors(&"a\n".repeat(10_000));
    assert_eq!((many.len(), span(&many[999])), (1_000, (1_998, 1_999)));
    let few = errors(&"a\n".repeat(900));
    assert_eq!(few.iter().filter(|error| error.message.starts_with("unknown statement")).count(), 900);
}

#[test]
fn what_costs_more_than_its_bytes_is_bounded() {
    let good = "batch 4\nloss mse prediction=y labels=t\noptimizer sgd lr=0.1\n";
    let told = |lines: &str| {
        let errors = parse(Path::new("job.shard"), &format!("mesh dp=2\n{good}{lines}")).err().unwrap_or_default();
        errors.into_iter().map(|error| error.message).collect::<Vec<_>>()
    };
    let no_errors: [&str; 0] = [];
    let patterns = |n: usize, pattern: &str| (0..n).map(|i| format!("freeze \"{pattern}{i}\"\n")).collect::<String>();
    assert_eq!(told(&patterns(1_000, "a*b")), no_errors);
    assert_eq!(told(&patterns(1_002, "a*b")), ["more than 1000 patterns of modules, or with `*` inside"]);
    assert_eq!(told(&patterns(5_000, "*.b")), no_errors);
    let blocks = |n: usize| format!("shard \"w\" [({})*dp]\n", vec!["2"; n].join("|"));
    assert_eq!(told(&blocks(512)), no_errors);
    assert_eq!(told(&blocks(513)), ["513 blocks of different sizes"]);
    assert_eq!(told(&format!("seed 1 {}\n", "#".repeat(131_065))), no_errors);
    assert_eq!(told(&format!("seed 1 {}\n", "#".repeat(131_066))), ["the line has 131073 bytes"]);
    let axis = |n: usize| parse(Path::new("job.shard"), &format!("mesh {}=2\n{good}", "a".repeat(n)));
    assert!(axis(64).is_ok());
    assert_eq!(axis(65).expect_err("too long")[0].message, "the name of an axis has 65 characters");
}
