# The README's install in a container, for cleanrl_utils.benchmark on AWS Batch, and for anything else:
#   docker build -t cleanrl .
#   docker run --rm -v "$PWD/runs:/cleanrl/runs" cleanrl python cleanrl/ppo.py
#   docker build -t cleanrl --build-arg EXTRAS=atari .
FROM python:3.11-slim-bookworm

# git: --auto-tag; g++: --compile; make: .devcontainer; the libraries: envpool, MuJoCo without a screen
RUN apt-get update \
    && apt-get install -y --no-install-recommends git g++ make libegl1 libopengl0 libgl1 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /cleanrl
RUN python3 -m venv .venv
ENV PATH=/cleanrl/.venv/bin:$PATH PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

# The dependencies first, which change less often than the code: all that the installation reads
COPY pyproject.toml README.md LICENSE ./
COPY cleanrl/__init__.py cleanrl/
COPY cleanrl_utils/__init__.py cleanrl_utils/
ARG EXTRAS=atari,mujoco,envpool
RUN pip install --upgrade pip && pip install -e ".[$EXTRAS]"

COPY cleanrl cleanrl
COPY cleanrl_utils cleanrl_utils
COPY benchmark benchmark

CMD ["python", "cleanrl/ppo.py", "--help"]
