"""A data store on a disk that a fault can fill (driver). It is loaded for a broker with a data directory only."""

import errno

from leveret.broker.embedded.fault_state import FaultState
from leveret.broker.persistence.data_store import DataStore
from leveret.storage.errors import DiskFullError
from leveret.storage.journal.batch import Batch, LoggedChanges
from leveret.storage.store.bodies import Bodies
from leveret.storage.store.environment import Environment

_NO_FAULTS = FaultState()


class _FaultyBodies(Bodies):
    faults = _NO_FAULTS

    def write(self, msg_id: int, content: bytes) -> None:
        if self.faults.is_disk_full:
            raise OSError(errno.ENOSPC, "no space: the disk is filled by a fault")
        super().write(msg_id, content)


class _FaultyEnvironment(Environment):
    faults = _NO_FAULTS
    bodies_class = _FaultyBodies
    bodies: _FaultyBodies

    def changes_to_log(self, batch: Batch) -> LoggedChanges | None:
        return None if self.faults.is_disk_full else super().changes_to_log(batch)

    def commit(self, batch: Batch) -> list[int]:
        if self.faults.is_disk_full and (batch.needs_sync or batch.paged):
            raise DiskFullError("no space: the disk is filled by a fault")
        return super().commit(batch)


class FaultyStore(DataStore):
    """One open data directory, on a disk that can be filled."""

    environment_class = _FaultyEnvironment
    environment: _FaultyEnvironment

    def set_faults(self, faults: FaultState) -> None:
        """Have these faults from now on."""
        self.environment.faults = self.environment.bodies.faults = faults
