//! Variables of each starter, half set and contradictory ones.

use super::Environment;
use crate::key::Key;

fn read(variables: &[(&str, &str)]) -> Result<Option<Environment>, String> {
    Environment::read(&|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string()))
}

fn good(variables: &[(&str, &str)]) -> (u64, u64, u64, Option<String>, &'static str) {
    let found = read(variables).unwrap().expect("a rank");
    (found.rank, found.world_size, found.local_rank, found.rendezvous, found.starter)
}

const SLURM: [(&str, &str); 3] = [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "1")];

#[test]
fn every_starter_is_understood() {
    assert_eq!(read(&[]), Ok(None));
    // A shell of a job that has started no ranks.
    assert_eq!(read(&[("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "3")]), Ok(None));
    let own = [("SHARDC_RANK", "1"), ("SHARDC_WORLD_SIZE", "4"), ("SHARDC_LOCAL_RANK", "1"), ("SHARDC_RENDEZVOUS", "h:1")];
    assert_eq!(good(&own), (1, 4, 1, Some("h:1".to_string()), "shardc launch"));
    let torchrun = [("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "n1"), ("MASTER_PORT", "29500")];
    assert_eq!(good(&torchrun), (3, 4, 1, Some("n1:29500".to_string()), "torchrun"));
    let agent = [&torchrun[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
    assert_eq!(good(&agent).3.as_deref(), Some("n1:29501"));
    let mpi = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "3"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")];
    assert_eq!(good(&mpi), (2, 3, 0, None, "OpenMPI"));
    let slurm = [&SLURM[..], &[("SLURM_JOB_NODELIST", "n[3-4]"), ("SLURM_JOB_ID", "7")]].concat();
    assert_eq!(good(&slurm), (5, 8, 1, Some("n3:20112".to_string()), "Slurm"));
    let slurm = [&SLURM[..], &[("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"), ("SLURM_JOB_ID", "7")]].concat();
    assert_eq!(good(&slurm).3.as_deref(), Some("10.0.0.1:20112"));
    // What was started last counts, and an address of ours above all.
    let both = [&SLURM[..], &torchrun, &[("SHARDC_RENDEZVOUS", "h:2"), ("SHARDC_RENDEZVOUS_KEY", "k")]].concat();
    let found = read(&both).unwrap().unwrap();
    assert_eq!((found.rank, found.rendezvous.as_deref(), found.key), (3, Some("h:2"), Key::of_text("k")));
}

#[test]
fn what_is_half_set_or_contradicts_is_told() {
    let message = |variables: &[(&str, &str)]| read(variables).unwrap_err();
    let half = message(&[("SHARDC_RANK", "1")]);
    assert_eq!(
        half,
        "SHARDC_RANK is set and SHARDC_WORLD_SIZE is not: shardc launch sets both; unset the first or set the second"
    );
    assert!(message(&SLURM[..2]).starts_with("SLURM_PROCID is set and SLURM_LOCALID is not"));
    assert!(message(&[("WORLD_SIZE", "2")]).starts_with("WORLD_SIZE is set and RANK is not: torchrun"));
    let three = |rank, size, local| [("RANK", rank), ("WORLD_SIZE", size), ("LOCAL_RANK", local)];
    assert_eq!(message(&three("4", "4", "0")), "RANK=4 and WORLD_SIZE=4: ranks count from 0");
    assert_eq!(message(&three("0", "0", "0")), "RANK=0 and WORLD_SIZE=0: ranks count from 0");
    assert_eq!(message(&three("1", "4", "2")), "LOCAL_RANK=2 is more than RANK=1");
    for odd in ["-1", "x", "", "18446744073709551616", "5000000000"] {
        assert_eq!(message(&three(odd, "4", "0")), format!("RANK is `{odd}`, which is no number"));
    }
    let half = [&three("1", "2", "1")[..], &[("MASTER_ADDR", "h")]].concat();
    assert_eq!(message(&half), "MASTER_ADDR is set and MASTER_PORT is not");
    let timeout = [&three("1", "2", "1")[..], &[("SHARDC_RENDEZVOUS_TIMEOUT", "soon")]].concat();
    assert!(message(&timeout).starts_with("SHARDC_RENDEZVOUS_TIMEOUT is `soon`"));
}
