import requests
from celery import Celery
from celery.signals import worker_process_shutdown

from semaphore_middleware import AcquireTimeoutError, PermitLostError, SyncSemaphore
from semaphore_middleware.clients.requests import SemaphoreAdapter

app = Celery("tasks", broker="redis://localhost")
semaphore = SyncSemaphore("redis://localhost")
session = requests.Session()
adapter = SemaphoreAdapter(semaphore, limit=2, timeout=60)
session.mount("https://", adapter)
session.mount("http://", adapter)


@app.task(autoretry_for=(AcquireTimeoutError, PermitLostError), max_retries=None)
def fetch(url):
    response = session.get(url, timeout=10)
    response.raise_for_status()
    return response.text


@worker_process_shutdown.connect
def give_back(**_):
    semaphore.close()
