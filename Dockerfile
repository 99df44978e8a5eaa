# The demo in a container, without network when it runs:
#   docker build -t discreet . && docker run --rm --network none discreet
# Other commands: docker run --rm -v "$PWD:/work" -w /work discreet discreet fit --help
FROM python:3.13-slim
COPY . /src
RUN pip install --no-cache-dir '/src[cli,plot,fast]' && rm -rf /src && useradd --create-home --uid 1000 steward
USER 1000
WORKDIR /home/steward
CMD ["discreet", "demo", "--out", "demo"]
