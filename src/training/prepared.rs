//! A training whose files are read, before its ranks start.

use super::checkpoints::{self, Checkpoints};
use super::rates::{flops, tokens};
use super::validation::{Readied, Validation};
use super::{Options, Rates, Summary, Training};
use crate::Job;
use crate::checkpoint::manifest::Position;
use crate::checkpoint::read::Checkpoint;
use crate::checkpoint::restore::restore;
use crate::error::Error;
use crate::job::Batches;
use shardc_executor::data::{Dataset, input_specs};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place, counted};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::train::Decay;
use shardc_launch::control::Control;
use std::sync::Arc;

/// A training whose files are read and fit together. Nothing is written, and no rank has started.
pub struct Prepared {
    job: Job,
    options: Options,
    programs: PlanSet,
    data: Dataset,
    validation: Option<Readied>,
    steps: u64,
    /// What there is to say to the user before the first step.
    pub warnings: Diagnostics,
}

impl Prepared {
    /// Reads the data, and holds the checkpoint that training goes on from, if there is one,
    /// against the job.
    ///
    /// # Errors
    /// All that is wrong with the options.
    pub fn new(job: Job, options: Options) -> Result<Prepared, Error> {
        if let Some(saving) = &options.saving {
            checkpoints::check_folder(&saving.folder, options.resume.as_ref())?;
        }
        let mut programs = job.training()?.clone();
        if let Some(seed) = seed(&options)? {
            programs.programs.iter_mut().for_each(|program| program.seed = seed);
        }
        options.machine.faults.check(&programs)?;
        let batches = Batches { shuffle: options.shuffle, ..job.batches(&programs) };
        let mut data = batches.of(&options.data, options.context, input_specs(&programs))?;
        let mut warnings = vec![];
        if let Some(checkpoint) = &options.resume {
            warnings.extend(checkpoints::resume(checkpoint, &programs, &mut data, options.shuffle)?);
        }
        let validation = Readied::new(&job, &options)?;
        let steps = options.steps.or(options.epochs.map(|epochs| epochs.saturating_mul(data.steps_per_epoch())));
        let decay = programs.first().learning_rate.decay;
        let steps = steps.unwrap_or_else(|| match decay {
            Decay::Cosine { steps, .. } | Decay::Linear { steps, .. } => steps,
            Decay::Constant => data.steps_per_epoch(),
        });
        warnings.extend(past_schedule(&job, decay, steps));
        Ok(Prepared { job, options, programs, data, validation, steps, warnings })
    }

    /// Starts the ranks: all of them here, or among processes the one of the control, with its
    /// number on this machine. `stop` is asked before each step, and between batches of validation,
    /// whether training is to end.
    ///
    /// # Errors
    /// A machine that cannot hold the ranks; a folder that cannot be written; a damaged checkpoint.
    pub fn start(self, among: Option<(Arc<Control>, u64)>, stop: impl Fn() -> bool + 'static) -> Result<Training, Error> {
        let Prepared { mut job, mut options, programs, data, validation, steps, .. } = self;
        let control = among.as_ref().map(|(control, _)| control.clone());
        let leads = control.as_ref().is_none_or(|control| control.rank() == 0);
        if options.exports {
            job.look_at_weights();
        }
        options.machine.apart |= options.check_replicas.is_some();
        let mut executor = match among.clone() {
            Some(among) => job.start_among(among, &programs, &options.machine)?,
            None => job.start(&programs, &options.machine)?,
        };
        if let Some(checkpoint) = &options.resume {
            restore(checkpoint, &mut executor)?;
        }
        let start = |readied| Validation::start(readied, &job, &options.machine, &executor, among);
        let validation = validation.map(start).transpose()?;
        let saving = options.saving.as_ref();
        let checkpoints = saving.map(|saving| Checkpoints::start(saving, &options, &executor, control)).transpose()?;
        job.forget_weights(options.exports)?;
        let summary = Summary { steps: 0, last: None, seconds: 0.0, end: None };
        let (stop, validation_loss, failed) = (Box::new(stop), None, None);
        Ok(Training {
            job,
            executor,
            data,
            options,
            steps,
            validation,
            checkpoints,
            stop,
            summary,
            validation_loss,
            failed,
            leads,
        })
    }

    /// What ranks that are processes have to agree on, beside the programs, before they start.
    pub fn agreed(&self) -> String {
        let validation = self.validation.as_ref().map(Readied::agreed).unwrap_or_default();
        let (samples, shuffle, from) = (self.data.samples(), self.options.shuffle, self.from());
        format!("steps={} shuffle={shuffle} samples={samples} from={from} {validation}", self.steps)
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The programs of the steps.
    pub fn programs(&self) -> &PlanSet {
        &self.programs
    }

    /// The data that it trains with.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// The steps of the whole training.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The checkpoint that training goes on from.
    pub fn resumed(&self) -> Option<&Checkpoint> {
        self.options.resume.as_ref()
    }

    /// The steps that are done already, by that checkpoint.
    pub fn from(&self) -> u64 {
        self.resumed().map_or(0, |checkpoint| checkpoint.manifest.position.step)
    }

    /// What a step does. The peak is not known yet ([`shardc_executor::bench::Peaks`]).
    pub fn rates(&self) -> Rates {
        Rates { tokens: self.tokens(), flops: flops(&self.programs), peak: None }
    }

    /// Tokens that a step takes in, where the model reads rows of them.
    pub fn tokens(&self) -> Option<u64> {
        tokens(&self.programs, |name| self.job.is_label(name))
    }
}

/// The seed that is asked for, or that of the checkpoint.
fn seed(options: &Options) -> Result<Option<u64>, Error> {
    let Some(checkpoint) = &options.resume else { return Ok(options.seed) };
    let Position { seed: had, .. } = checkpoint.manifest.position;
    match options.seed {
        Some(given) if given != had => {
            let error = Diagnostic::error(format!("this was trained with the seed {had}, not {given}"));
            let error = error.at(Place::File(checkpoint.path.clone()));
            Err(error.help(format!("leave `--seed {given}` out, so that it goes on with its own")).into())
        }
        _ => Ok(Some(had)),
    }
}

/// A warning where training goes on behind the end of its schedule.
fn past_schedule(job: &Job, decay: Decay, steps: u64) -> Option<Diagnostic> {
    let (Decay::Cosine { steps: end, min_lr } | Decay::Linear { steps: end, min_lr }) = decay else { return None };
    if end >= steps {
        return None;
    }
    let warning = Diagnostic::warning(format!("the schedule ends after {}, and training after {steps}", counted(end, "step")));
    let warning = warning.at_opt(job.spec.schedule.as_ref().map(|schedule| job.spec.place_of(schedule.source)));
    let rate = if min_lr > 0.0 { format!("stays at {min_lr}") } else { "is 0, and nothing is trained any more".to_string() };
    let help = format!("write `steps={steps}` in the `schedule` line, or train with `--steps {end}`");
    Some(warning.label(format!("from step {} on the rate {rate}", end + 1)).help(help))
}
