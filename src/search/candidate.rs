//! One way to spread a job over ranks, and the lines of a spec that say so.

use shardc_ir::spec::ZeroStage;
use std::fmt::Write;

/// What the lines of a candidate stand for, so that those of the spec it begins with go.
#[rustfmt::skip]
const REPLACED: [&str; 12] = [
    "mesh", "batch", "data", "tensor", "sequence", "shard", "zero", "pipeline", "place", "recompute", "device", "replicate",
];

/// The order in which a pipeline works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// One forward, one backward.
    Plain,
    /// So many chunks of layers on each position.
    Interleaved(u64),
    /// Gradients of weights fill the gaps.
    ZeroBubble,
}

/// What is computed again in the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Again {
    /// Nothing.
    Nothing,
    /// What is cheap.
    Selective,
    /// Each block of the model.
    Blocks,
}

/// One way to spread a job. Every number is at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// Positions of the pipeline.
    pub pp: u64,
    /// Ranks that read other samples and hold what each of the others does.
    pub dp: u64,
    /// Ranks that read other samples and share states.
    pub fsdp: u64,
    /// Ranks that share each layer.
    pub tp: u64,
    /// Whether the tokens between layers are split over these too.
    pub sequence: bool,
    /// What `zero` cuts: over `fsdp` where there are several, else over `dp`.
    pub zero: ZeroStage,
    /// Micro-batches.
    pub microbatches: u64,
    /// The schedule of the pipeline.
    pub order: Order,
    /// What is computed again.
    pub again: Again,
}

/// What the lines of candidates begin with.
#[derive(Debug, Clone)]
pub struct Base {
    /// The lines of a spec that hold for every candidate.
    pub lines: String,
    /// Samples of a step.
    pub batch: u64,
    /// The bytes of a rank, as a spec writes them.
    pub memory: Option<String>,
    /// A pattern of the scopes of blocks.
    pub blocks: Option<String>,
    /// Tables of embeddings that are large: their names and rows.
    pub tables: Vec<(String, u64)>,
}

impl Base {
    /// The lines of `text` that say nothing of how the job is spread.
    pub fn new(text: &str, batch: u64) -> Base {
        let is_kept = |line: &&str| !line.split_whitespace().next().is_some_and(|word| REPLACED.contains(&word));
        let lines = text.lines().filter(is_kept).fold(String::new(), |text, line| text + line + "\n");
        Base { lines: lines.trim_matches('\n').to_string() + "\n", batch, memory: None, blocks: None, tables: vec![] }
    }
}

impl Candidate {
    /// All on one rank.
    pub const ONE_RANK: Candidate = Candidate {
        pp: 1,
        dp: 1,
        fsdp: 1,
        tp: 1,
        sequence: false,
        zero: ZeroStage::Replicated,
        microbatches: 1,
        order: Order::Plain,
        again: Again::Nothing,
    };

    /// Ranks that read other samples.
    pub fn replicas(&self) -> u64 {
        self.dp * self.fsdp
    }

    /// The samples of a rank's micro-batch.
    pub fn samples(&self, batch: u64) -> u64 {
        batch / self.replicas() / self.microbatches
    }

    /// The text of the spec.
    pub fn spec(&self, base: &Base) -> String {
        self.spec_for(base, base.batch)
    }

    /// The text of the spec for another batch.
    pub fn spec_for(&self, base: &Base, batch: u64) -> String {
        let mut text = base.lines.clone();
        text.push('\n');
        let axes = [("pp", self.pp), ("dp", self.dp), ("fsdp", self.fsdp), ("tp", self.tp)];
        let axes: Vec<String> = axes.iter().filter(|(_, size)| *size > 1).map(|(name, size)| format!("{name}={size}")).collect();
        let mut line = |text_of: String| {
            let _ = writeln!(text, "{text_of}");
        };
        if !axes.is_empty() {
            line(format!("mesh      {}", axes.join(" ")));
        }
        let parts = if self.microbatches > 1 { format!(" microbatches={}", self.microbatches) } else { String::new() };
        line(format!("batch     {batch}{parts}"));
        match (self.dp > 1, self.fsdp > 1) {
            (true, true) => line("data      axis=(dp,fsdp)".to_string()),
            (true, false) => line("data      axis=dp".to_string()),
            (false, true) => line("data      axis=fsdp".to_string()),
            (false, false) => {}
        }
        if self.tp > 1 {
            line("tensor    axis=tp".to_string());
            for (name, _) in base.tables.iter().filter(|(_, rows)| rows.is_multiple_of(self.tp)) {
                line(format!("shard     \"{name}\" [tp, -]"));
            }
        }
        if self.sequence {
            line("sequence  axis=tp".to_string());
        }
        if self.zero > ZeroStage::Replicated {
            line(format!("zero      stage={} axis={}", self.zero as u8, if self.fsdp > 1 { "fsdp" } else { "dp" }));
        }
        if self.pp > 1 {
            let schedule = match self.order {
                Order::Plain => "1f1b".to_string(),
                Order::Interleaved(chunks) => format!("interleaved(chunks={chunks})"),
                Order::ZeroBubble => "zb-h1".to_string(),
            };
            line(format!("pipeline  axis=pp schedule={schedule}"));
        }
        match (self.again, &base.blocks) {
            (Again::Nothing, _) | (Again::Blocks, None) => {}
            (Again::Selective, _) => line("recompute selective".to_string()),
            (Again::Blocks, Some(blocks)) => line(format!("recompute \"{blocks}\"")),
        }
        if let Some(memory) = &base.memory {
            line(format!("device    memory={memory}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_is_a_spec() {
        let mut base =
            Base::new("mesh dp=2\n\nbatch 8 # samples\nloss mse\nshard \"w\" [dp]\ndata axis=dp\noptimizer sgd lr=1\n", 16);
        base.blocks = Some("h.*".to_string());
        base.tables = vec![("wte".to_string(), 10), ("odd".to_string(), 7)];
        let candidate = Candidate {
            pp: 2,
            dp: 1,
            fsdp: 2,
            tp: 2,
            sequence: true,
            zero: ZeroStage::Parameters,
            microbatches: 4,
            order: Order::Interleaved(3),
            again: Again::Blocks,
        };
        let text = "loss mse\noptimizer sgd lr=1\n\nmesh      pp=2 fsdp=2 tp=2\nbatch     16 microbatches=4\ndata      axis=fsdp\n\
                    tensor    axis=tp\nshard     \"wte\" [tp, -]\nsequence  axis=tp\nzero      stage=3 axis=fsdp\n\
                    pipeline  axis=pp schedule=interleaved(chunks=3)\nrecompute \"h.*\"\n";
        assert_eq!(candidate.spec(&base), text);
        assert_eq!(candidate.samples(16), 2);
    }
}
